/*
 * What CUDA programs do with memory, compiled by nvcc as they are. Every
 * result is a sum of integers, the same in every run; what is printed must not
 * depend on where memory comes from.
 *
 *   work default   kernels on the default stream, many sizes, copies
 *   work streams   eight streams that free what their kernels still write to
 *   work late      memory freed right after a slow launch and taken again
 *   work threads   four threads, each with streams of its own
 *   work graph     a graph captured while memory comes and goes, replayed
 *   work async     the ordered allocator mixed with the plain one
 *   work host      page-locked memory freed under copies
 *   work shapes    rows with a pitch, and a box
 *   work ipc       memory shared with another process
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#define CUDA(call)                                                             \
    do {                                                                       \
        cudaError_t code_ = (call);                                            \
        if (code_ != cudaSuccess) {                                            \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                         cudaGetErrorName(code_));                             \
            std::_Exit(1);                                                     \
        }                                                                      \
    } while (0)

namespace {

constexpr int THREADS = 256;

__device__ uint32_t mixed(uint32_t word) {
    word ^= word >> 16;
    word *= 0x7feb352du;
    word ^= word >> 15;
    word *= 0x846ca68bu;
    return word ^ word >> 16;
}

__global__ void fill(uint32_t *words, size_t count, uint32_t seed) {
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (; at < count; at += step)
        words[at] = mixed(uint32_t(at) + seed);
}

__global__ void combine(uint32_t *words, const uint32_t *others, size_t count) {
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (; at < count; at += step)
        words[at] = mixed(words[at] + others[at]);
}

__global__ void sum(const uint32_t *words, size_t count,
                    unsigned long long *result) {
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    size_t step = size_t(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (; at < count; at += step)
        mine += words[at];
    atomicAdd(result, mine);
}

/* Takes so many clock ticks and then writes. */
__global__ void slow_fill(uint32_t *words, size_t count, uint32_t seed,
                          long long ticks) {
    long long begin = clock64();
    while (clock64() - begin < ticks)
        ;
    size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    size_t step = size_t(gridDim.x) * blockDim.x;
    for (; at < count; at += step)
        words[at] = mixed(uint32_t(at) + seed);
}

int blocks_for(size_t count) {
    size_t blocks = (count + THREADS - 1) / THREADS;
    return int(blocks < 1024 ? blocks : 1024);
}

/* A sum that is kept on the device until it is asked for. */
struct Sum {
    unsigned long long *there = nullptr;

    Sum() {
        CUDA(cudaMalloc(&there, sizeof *there));
        CUDA(cudaMemset(there, 0, sizeof *there));
        CUDA(cudaDeviceSynchronize());
    }

    void add(const uint32_t *words, size_t count, cudaStream_t stream) {
        sum<<<blocks_for(count), THREADS, 0, stream>>>(words, count, there);
        CUDA(cudaGetLastError());
    }

    unsigned long long get(cudaStream_t stream) {
        unsigned long long here;
        CUDA(cudaMemcpyAsync(&here, there, sizeof here, cudaMemcpyDeviceToHost,
                             stream));
        CUDA(cudaStreamSynchronize(stream));
        return here;
    }

    ~Sum() { CUDA(cudaFree(there)); }
};

uint32_t *words_of(size_t count) {
    uint32_t *words;
    CUDA(cudaMalloc(&words, count * sizeof *words));
    return words;
}

/* Temporaries that are freed while the stream still works on them. */
unsigned long long churn(cudaStream_t stream, uint32_t seed, int rounds) {
    Sum total;
    for (int round = 0; round < rounds; round++) {
        size_t count = 1000 + (size_t(seed) * 7919 + size_t(round) * 104729) %
                                  (size_t(1) << (8 + round % 14));
        uint32_t *left = words_of(count), *right = words_of(count);
        fill<<<blocks_for(count), THREADS, 0, stream>>>(left, count, seed);
        fill<<<blocks_for(count), THREADS, 0, stream>>>(
            right, count, seed + uint32_t(round));
        combine<<<blocks_for(count), THREADS, 0, stream>>>(left, right, count);
        CUDA(cudaFree(right));
        total.add(left, count, stream);
        CUDA(cudaFree(left));
    }
    return total.get(stream);
}

void on_default() {
    std::printf("sum %llu\n", churn(nullptr, 1, 400));
    size_t count = 5 << 20;
    uint32_t *words = words_of(count), *copy = words_of(count);
    std::vector<uint32_t> here(count);
    fill<<<blocks_for(count), THREADS>>>(words, count, 3);
    CUDA(cudaMemcpy(copy, words, count * 4, cudaMemcpyDeviceToDevice));
    CUDA(cudaFree(words));
    CUDA(cudaMemcpy(here.data(), copy, count * 4, cudaMemcpyDeviceToHost));
    unsigned long long total = 0;
    for (uint32_t word : here)
        total += word;
    std::printf("copied %llu\n", total);
    CUDA(cudaFree(copy));
}

void on_streams() {
    constexpr int STREAMS = 8;
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < STREAMS; i++) {
            cudaStream_t stream;
            CUDA(cudaStreamCreateWithFlags(
                &stream, i % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
            std::printf("turn %d stream %d: %llu\n", turn, i,
                        churn(stream, uint32_t(turn * 100 + i), 60));
            CUDA(cudaStreamDestroy(stream));
        }
    }
    /* All at once: what one frees another takes. */
    cudaStream_t streams[STREAMS];
    Sum sums[STREAMS];
    for (auto &stream : streams)
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < 200; round++) {
        int i = round % STREAMS;
        size_t count = size_t(1) << (10 + round % 12);
        uint32_t *words = words_of(count);
        slow_fill<<<blocks_for(count), THREADS, 0, streams[i]>>>(
            words, count, uint32_t(round), 200000);
        sums[i].add(words, count, streams[i]);
        CUDA(cudaFree(words));
    }
    for (int i = 0; i < STREAMS; i++) {
        std::printf("together %d: %llu\n", i, sums[i].get(streams[i]));
        CUDA(cudaStreamDestroy(streams[i]));
    }
}

void late() {
    cudaStream_t slow, other;
    CUDA(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned long long wrong = 0;
    for (size_t count : {1u << 8, 1u << 12, 1u << 16, 1u << 20, 1u << 22}) {
        for (int round = 0; round < 10; round++) {
            uint32_t *first = words_of(count);
            slow_fill<<<blocks_for(count), THREADS, 0, slow>>>(
                first, count, 0xbad, 5000000);
            CUDA(cudaFree(first));
            uint32_t *second = words_of(count);
            CUDA(cudaMemsetAsync(second, 0x5a, count * 4, other));
            CUDA(cudaStreamSynchronize(other));
            CUDA(cudaDeviceSynchronize());
            std::vector<uint32_t> here(count);
            CUDA(cudaMemcpy(here.data(), second, count * 4,
                            cudaMemcpyDeviceToHost));
            for (uint32_t word : here)
                wrong += word != 0x5a5a5a5au;
            CUDA(cudaFree(second));
        }
    }
    std::printf("words written by others: %llu\n", wrong);
    CUDA(cudaStreamDestroy(slow));
    CUDA(cudaStreamDestroy(other));
}

void in_threads() {
    constexpr int WORKERS = 4;
    unsigned long long sums[WORKERS] = {};
    std::vector<std::thread> workers;
    for (int i = 0; i < WORKERS; i++)
        workers.emplace_back([i, &sums] {
            cudaStream_t stream;
            CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            for (int turn = 0; turn < 4; turn++)
                sums[i] += churn(stream, uint32_t(i * 31 + turn), 150);
            CUDA(cudaStreamDestroy(stream));
        });
    for (auto &worker : workers)
        worker.join();
    for (unsigned long long each : sums)
        std::printf("thread: %llu\n", each);
}

void in_graph() {
    constexpr size_t COUNT = 1 << 18;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    uint32_t *words = words_of(COUNT), *others = words_of(COUNT);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fill<<<blocks_for(COUNT), THREADS, 0, stream>>>(words, COUNT, 1);
    fill<<<blocks_for(COUNT), THREADS, 0, stream>>>(others, COUNT, 2);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 5; i++) {
        combine<<<blocks_for(COUNT), THREADS, 0, stream>>>(words, others,
                                                           COUNT);
        uint32_t *meanwhile = words_of(size_t(1) << (10 + 3 * i));
        CUDA(cudaFree(meanwhile));
    }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 20; replay++) {
        CUDA(cudaGraphLaunch(executable, stream));
        uint32_t *meanwhile = words_of(COUNT);
        fill<<<blocks_for(COUNT), THREADS>>>(meanwhile, COUNT, 9);
        CUDA(cudaFree(meanwhile));
    }
    Sum total;
    CUDA(cudaStreamSynchronize(stream));
    total.add(words, COUNT, stream);
    std::printf("graph %llu\n", total.get(stream));
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaFree(words));
    CUDA(cudaFree(others));
    CUDA(cudaStreamDestroy(stream));
}

void ordered() {
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    Sum total;
    for (int round = 0; round < 100; round++) {
        size_t count = 4096 + size_t(round) * 1000;
        uint32_t *left, *right = words_of(count);
        CUDA(cudaMallocAsync(&left, count * 4, stream));
        fill<<<blocks_for(count), THREADS, 0, stream>>>(left, count, 5);
        fill<<<blocks_for(count), THREADS, 0, stream>>>(right, count, 6);
        combine<<<blocks_for(count), THREADS, 0, stream>>>(right, left, count);
        total.add(right, count, stream);
        if (round % 3) {
            CUDA(cudaFreeAsync(left, stream));
        } else {
            /* The plain free waits for no work on memory of the ordered one. */
            CUDA(cudaStreamSynchronize(stream));
            CUDA(cudaFree(left));
        }
        if (round % 2)
            CUDA(cudaFreeAsync(right, stream));
        else
            CUDA(cudaFree(right));
    }
    std::printf("ordered %llu\n", total.get(stream));
    CUDA(cudaStreamDestroy(stream));
}

void page_locked() {
    constexpr size_t COUNT = 1 << 20;
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Sum total;
    for (int round = 0; round < 40; round++) {
        uint32_t *here, *there = words_of(COUNT);
        CUDA(cudaMallocHost(&here, COUNT * 4));
        for (size_t i = 0; i < COUNT; i++)
            here[i] = uint32_t(i) * uint32_t(round + 1);
        CUDA(cudaMemcpyAsync(there, here, COUNT * 4, cudaMemcpyHostToDevice,
                             stream));
        total.add(there, COUNT, stream);
        CUDA(cudaFreeHost(here));
        CUDA(cudaFree(there));
    }
    std::printf("page-locked %llu\n", total.get(stream));
    CUDA(cudaStreamDestroy(stream));
}

void shapes() {
    Sum total;
    for (size_t width : {100u, 1000u, 5000u}) {
        void *rows;
        size_t pitch;
        CUDA(cudaMallocPitch(&rows, &pitch, width, 300));
        CUDA(cudaMemset2D(rows, pitch, 7, width, 300));
        std::vector<unsigned char> here(width * 300);
        CUDA(cudaMemcpy2D(here.data(), width, rows, pitch, width, 300,
                          cudaMemcpyDeviceToHost));
        size_t sevens = 0;
        for (unsigned char byte : here)
            sevens += byte == 7;
        std::printf("rows of %zu, pitch %zu: %zu right\n", width, pitch,
                    sevens);
        CUDA(cudaFree(rows));
        cudaPitchedPtr box;
        CUDA(cudaMalloc3D(&box, make_cudaExtent(width, 20, 10)));
        CUDA(cudaMemset3D(box, 1, make_cudaExtent(width, 20, 10)));
        std::printf("box of %zu, pitch %zu\n", width, box.pitch);
        CUDA(cudaFree(box.ptr));
    }
}

constexpr int SHARED = 6;

size_t shared_count(int i) { return size_t(1000) << (2 * i); }

/* Reads each block of the other process and says what it sums to. */
void receive(int handles, int answers) {
    for (int i = 0; i < SHARED; i++) {
        cudaIpcMemHandle_t handle;
        uint32_t *words;
        if (read(handles, &handle, sizeof handle) != sizeof handle)
            std::_Exit(1);
        CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&words), handle,
                                  cudaIpcMemLazyEnablePeerAccess));
        Sum total;
        total.add(words, shared_count(i), nullptr);
        unsigned long long seen = total.get(nullptr);
        fill<<<1, THREADS>>>(words, shared_count(i), 77);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaIpcCloseMemHandle(words));
        if (write(answers, &seen, sizeof seen) != sizeof seen)
            std::_Exit(1);
    }
}

void shared() {
    int there[2], back[2], status;
    if (pipe(there) || pipe(back))
        std::_Exit(1);
    /* Before anything of CUDA, which does not outlive a fork. */
    pid_t child = fork();
    if (child == 0) {
        receive(there[0], back[1]);
        std::fflush(stdout);
        std::_Exit(0);
    }
    for (int i = 0; i < SHARED; i++) {
        cudaIpcMemHandle_t handle;
        unsigned long long seen;
        size_t count = shared_count(i);
        uint32_t *around = words_of(count), *words = words_of(count);
        fill<<<blocks_for(count), THREADS>>>(words, count, uint32_t(i));
        fill<<<blocks_for(count), THREADS>>>(around, count, 1234);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaIpcGetMemHandle(&handle, words));
        if (write(there[1], &handle, sizeof handle) != sizeof handle ||
            read(back[0], &seen, sizeof seen) != sizeof seen)
            std::_Exit(1);
        Sum own, others;
        own.add(words, count, nullptr);
        others.add(around, count, nullptr);
        std::printf("block %d: seen %llu, after %llu, beside it %llu\n", i, seen,
                    own.get(nullptr), others.get(nullptr));
        CUDA(cudaFree(words));
        CUDA(cudaFree(around));
    }
    waitpid(child, &status, 0);
    std::printf("the other process: %d\n", status);
}

struct Mode {
    const char *name;
    void (*work)();
};

constexpr Mode MODES[] = {
    {"default", on_default}, {"streams", on_streams}, {"late", late},
    {"threads", in_threads}, {"graph", in_graph},     {"async", ordered},
    {"host", page_locked},   {"shapes", shapes},      {"ipc", shared},
};

} // namespace

int main(int argc, char **argv) {
    for (const Mode &mode : MODES)
        if (argc == 2 && !std::strcmp(argv[1], mode.name)) {
            mode.work();
            return 0;
        }
    std::fprintf(stderr, "usage: work default|streams|late|threads|graph|async|"
                         "host|shapes|ipc\n");
    return 2;
}
