# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Install four packages in 1.17.8, and kill DNF while it upgrades them to 1.18.2. Print the packages that it leaves.
#
# usage: kill_dnf.sh PACKAGE-VERSION    kill DNF in the scriptlet of this package
#        kill_dnf.sh any                kill DNF in the first scriptlet
set -eu
printf '[main]\nenabled = false\n' >/etc/dnf/plugins/local.conf
mkdir -p /etc/rpm /etc/dnf/vars /etc/yum.repos.d /srv/packages
printf '%s\n' '%_dbpath /var/lib/rpm' >/etc/rpm/macros
echo 9 >/etc/dnf/vars/releasever
cd /srv/packages
names='libnvidia-container1 libnvidia-container-tools nvidia-container-toolkit-base nvidia-container-toolkit'
for version in 1.17.8 1.18.2; do
    for name in $names; do
        cat >/tmp/package.spec <<SPEC
Name: $name
Version: $version
Release: 1
Summary: $name
License: MIT
BuildArch: noarch
Provides: /bin/sh
%description
$name
%install
mkdir -p %{buildroot}/opt/packages
echo $version >%{buildroot}/opt/packages/$name
%files
/opt/packages/$name
%post
if [ -e /run/hold/$name-$version ] || { [ -e /run/hold/any ] && [ $version = 1.18.2 ]; }; then
    touch /run/reached
    while [ -e /run/hold ]; do sleep 0.1; done
fi
SPEC
        rpmbuild -bb --quiet --define '_rpmdir /srv/packages' --define '_rpmfilename %%{NAME}-%%{VERSION}.rpm' /tmp/package.spec >/tmp/log 2>&1 ||
            { cat /tmp/log >&2; exit 1; }
    done
done
createrepo_c --quiet .
printf '[packages]\nname=packages\nbaseurl=file:///srv/packages\ngpgcheck=0\n' >/etc/yum.repos.d/packages.repo
dnf --assumeyes --quiet install $(printf '%s-1.17.8 ' $names) >/dev/null 2>&1
mkdir -p "/run/hold/$1"
setsid dnf --assumeyes --quiet install $(printf '%s-1.18.2 ' $names) >/dev/null 2>&1 &
until [ -e /run/reached ]; do
    kill -0 $! || { echo 'DNF ended before the scriptlet' >&2; exit 1; }
    sleep 0.1
done
# Kill the scriptlet too, as a power failure would.
kill -KILL -- -$!
wait || true
rm -r /run/hold
rpm --query --all --queryformat 'killed %{NAME} %{VERSION}\n' | sort
