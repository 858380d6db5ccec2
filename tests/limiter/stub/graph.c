/* Copyright: (c) openfleet.gpu contributors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: kernel nodes have a duration, and memory nodes have a size. A graph's memory is reserved when the graph is
 * first uploaded or launched. Graphs that do not run in parallel share the memory, so the reservation is the maximum
 * that one of them needs. cuDeviceGraphMemTrim frees it.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct CUgraphNode_st {
    CUgraphNode next;
    int type, gpu;
    uint64_t nanoseconds;
    CUdeviceptr address;
    size_t size;
};

struct CUgraph_st {
    CUgraphNode nodes;
    size_t memory[STUB_MAX_GPUS];
    uint64_t nanoseconds;
};

struct CUgraphExec_st {
    size_t memory[STUB_MAX_GPUS];
    uint64_t nanoseconds;
};

#define STEP ((size_t)2 << 20)

static struct { uint64_t reserved, high; } pools[STUB_MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUgraphNode add(CUgraph graph, int type)
{
    CUgraphNode node = calloc(1, sizeof *node);
    node->type = type;
    pthread_mutex_lock(&lock);
    node->next = graph->nodes;
    graph->nodes = node;
    pthread_mutex_unlock(&lock);
    return node;
}

CUgraph stub_graph_new(void)
{
    return calloc(1, sizeof(struct CUgraph_st));
}

static CUgraphNode add_kernel(CUgraph graph, uint64_t nanoseconds)
{
    CUgraphNode node = add(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    node->nanoseconds = nanoseconds;
    graph->nanoseconds += nanoseconds;
    return node;
}

void stub_graph_add_kernel(CUgraph graph, uint64_t nanoseconds)
{
    add_kernel(graph, nanoseconds);
}

static CUgraphNode add_memory(CUgraph graph, int gpu, size_t size)
{
    CUgraphNode node = add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    node->gpu = gpu;
    node->size = size;
    node->address = stub_address(size);
    stub_block_add((struct block){node->address, size, BLOCK_GRAPH, gpu, 0, NULL});
    graph->memory[gpu] += size;
    return node;
}

CUresult stub_graph_add_memory(CUgraph graph, int gpu, size_t bytes, CUdeviceptr *address)
{
    if (gpu < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *address = add_memory(graph, gpu, bytes)->address;
    return CUDA_SUCCESS;
}

void stub_graph_free_memory(CUgraph graph, CUdeviceptr address)
{
    add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE)->address = address;
}

void stub_graph_give(int gpu, size_t size)
{
    (void)gpu, (void)size; /* the memory stays reserved until it is trimmed */
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CUresult ready = stub_ready();
    if (ready || !graph || flags)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *graph = stub_graph_new();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult ready = stub_ready();
    if (ready || !graph)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    while (graph->nodes) {
        CUgraphNode next = graph->nodes->next;
        free(graph->nodes);
        graph->nodes = next;
    }
    free(graph);
    return CUDA_SUCCESS;
}

/* In every version, the parameters of kernel nodes start with the function. */
static CUresult kernel_node(CUgraphNode *node, CUgraph graph, const void *parameters)
{
    CUresult ready = stub_ready();
    if (ready || !node || !graph || !parameters)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *node = add_kernel(graph, stub_kernel_nanoseconds(*(const CUfunction *)parameters));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const void *parameters)
{
    (void)after, (void)count;
    return kernel_node(node, graph, parameters);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const void *parameters)
{
    (void)after, (void)count;
    return kernel_node(node, graph, parameters);
}

static CUresult memory_node(CUgraphNode *node, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    CUresult ready = stub_ready();
    if (ready || !node || !graph || !parameters || !parameters->bytesize)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    int gpu = parameters->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? stub_gpu_of(parameters->poolProps.location.id) : -1;
    if (gpu < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *node = add_memory(graph, gpu, parameters->bytesize);
    parameters->dptr = (*node)->address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    (void)after, (void)count;
    return memory_node(node, graph, parameters);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address)
{
    (void)after, (void)count;
    CUresult ready = stub_ready();
    if (ready || !node || !graph || !address)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *node = add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
    (*node)->address = address;
    return CUDA_SUCCESS;
}

/* Parameters of cuGraphAddNode: the type as int, three reserved ints, and the parameters for the type. */
static CUresult any_node(CUgraphNode *node, CUgraph graph, int *parameters)
{
    CUresult ready = stub_ready();
    if (ready || !node || !graph || !parameters)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    if (parameters[0] == CU_GRAPH_NODE_TYPE_KERNEL)
        return kernel_node(node, graph, parameters + 4);
    if (parameters[0] == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return memory_node(node, graph, (CUDA_MEM_ALLOC_NODE_PARAMS *)(void *)(parameters + 4));
    *node = add(graph, parameters[0]);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *parameters)
{
    (void)after, (void)count;
    return any_node(node, graph, parameters);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, void *parameters)
{
    (void)after, (void)edges, (void)count;
    return any_node(node, graph, parameters);
}

/* --- Executable graphs --- */

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    CUresult ready = stub_ready();
    if (ready || !exec || !graph)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *exec = calloc(1, sizeof **exec);
    memcpy((*exec)->memory, graph->memory, sizeof graph->memory);
    (*exec)->nanoseconds = graph->nanoseconds;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    return instantiate(exec, graph);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    (void)error, (void)log, (void)size;
    return instantiate(exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *parameters)
{
    (void)parameters;
    return instantiate(exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *parameters)
{
    (void)parameters;
    return instantiate(exec, graph);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    CUresult ready = stub_ready();
    if (ready || !exec)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    free(exec);
    return CUDA_SUCCESS;
}

uint64_t stub_graph_nanoseconds(CUgraphExec exec)
{
    return exec->nanoseconds;
}

CUresult stub_graph_memory(CUgraphExec exec)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (int gpu = 0; gpu < STUB_MAX_GPUS && !result; gpu++) {
        uint64_t need = (exec->memory[gpu] + STEP - 1) / STEP * STEP;
        if (need <= pools[gpu].reserved)
            continue;
        result = stub_take("cuGraphLaunch", gpu, STUB_GRAPH, need - pools[gpu].reserved);
        if (!result)
            pools[gpu].reserved = need;
        if (pools[gpu].reserved > pools[gpu].high)
            pools[gpu].high = pools[gpu].reserved;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult upload(CUgraphExec exec)
{
    CUresult ready = stub_ready();
    return ready ? ready : exec ? stub_graph_memory(exec) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    return upload(exec);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    return upload(exec);
}

void stub_graph_reset(int gpu)
{
    pthread_mutex_lock(&lock);
    stub_give(gpu, STUB_GRAPH, pools[gpu].reserved);
    pools[gpu].reserved = 0;
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult ready = stub_ready();
    int gpu = stub_gpu_of(device);
    if (ready || gpu < 0)
        return ready ? ready : CUDA_ERROR_INVALID_DEVICE;
    stub_graph_reset(gpu);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    CUresult ready = stub_ready();
    int gpu = stub_gpu_of(device);
    if (ready || gpu < 0 || !value || attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    *(uint64_t *)value = high ? pools[gpu].high : pools[gpu].reserved;
    return CUDA_SUCCESS;
}
