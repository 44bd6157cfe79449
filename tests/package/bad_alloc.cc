// A C++ program that catches what vramalloc_torch_malloc throws, and goes on: the
// exception passes through frames of the preloaded library.
#include <cstddef>
#include <cstdio>
#include <dlfcn.h>
#include <new>

extern "C" int cudaFree(void *);

int main() {
    cudaFree(nullptr);
    using malloc_t = void *(*)(std::ptrdiff_t, int, void *);
    auto torch_malloc =
        reinterpret_cast<malloc_t>(dlsym(RTLD_DEFAULT, "vramalloc_torch_malloc"));
    if (!torch_malloc) {
        std::puts("not preloaded");
        return 1;
    }
    int caught = 0;
    for (int i = 0; i < 3; i++) {
        try {
            torch_malloc(std::ptrdiff_t(1) << 46, 0, nullptr);
        } catch (const std::bad_alloc &) {
            caught++;
        }
    }
    void *small = torch_malloc(4096, 0, nullptr);
    std::printf("caught %d, then served: %s\n", caught, small ? "yes" : "no");
    return caught == 3 && small ? 0 : 1;
}
