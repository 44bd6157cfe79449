/*
 * What the library counted: as text in the program, and as a file.
 *
 *   gcc statistics.c -o statistics $(pkg-config --cflags --libs vramalloc) -lcudart
 */
#include <string.h>

#include "cuda.h"

int main(void) {
    void *blocks[10];
    char *text;

    for (int i = 0; i < 10; i++)
        CHECK(vramalloc_malloc(1000 << i, 0, &blocks[i]));
    for (int i = 0; i < 10; i++)
        CHECK(vramalloc_free(blocks[i]));

    /* The text is ours until we free it; docs/statistics.md explains the JSON. */
    CHECK(vramalloc_statistics(&text));
    printf("it is of the schema 1: %s\n",
           strstr(text, "\"schema\": 1") ? "yes" : "no");
    printf("ten allocations: %s\n",
           strstr(text, "\"allocations\": 10") ? "yes" : "no");
    vramalloc_free_text(text);

    /* A file, at a moment of our choice; at exit another is written anyway. */
    CHECK(vramalloc_dump("half-way.json"));
    FILE *file = fopen("half-way.json", "r");
    printf("a file was written: %s\n", file ? "yes" : "no");
    if (file)
        fclose(file);
    return 0;
}
