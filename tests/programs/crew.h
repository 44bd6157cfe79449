/*
 * A few threads of which one works at a time: who calls crew_do waits until
 * the picked thread has done the work, so that a program with threads does the
 * same however they are scheduled. Thread 0 is the caller itself.
 */
#ifndef PROGRAMS_CREW_H
#define PROGRAMS_CREW_H

#include <pthread.h>
#include <stdlib.h>

enum { CREW_MOST = 4 };

typedef void (*crew_work)(void *argument);

struct crew {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[CREW_MOST];
    int count;
    int turn; /* whose work is to be done; 0: none of the crew's */
    crew_work work;
    void *argument;
};

struct crew_member {
    struct crew *crew;
    int number;
};

static void *crew_member_main(void *argument) {
    struct crew_member *member = argument;
    struct crew *crew = member->crew;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        while (crew->turn != member->number)
            pthread_cond_wait(&crew->changed, &crew->lock);
        if (!crew->work)
            break;
        crew->work(crew->argument);
        crew->turn = 0;
        pthread_cond_broadcast(&crew->changed);
    }
    crew->turn = 0;
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
    free(member);
    return NULL;
}

/* Has `work` done by the thread; NULL ends the thread. */
static void crew_do(struct crew *crew, int thread, crew_work work,
                    void *argument) {
    if (thread == 0) {
        work(argument);
        return;
    }
    pthread_mutex_lock(&crew->lock);
    crew->work = work;
    crew->argument = argument;
    crew->turn = thread;
    pthread_cond_broadcast(&crew->changed);
    while (crew->turn)
        pthread_cond_wait(&crew->changed, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

/* `count` threads, the caller counted. */
static void crew_start(struct crew *crew, int count) {
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->changed, NULL);
    crew->count = count;
    crew->turn = 0;
    for (int i = 1; i < count; i++) {
        struct crew_member *member = malloc(sizeof *member);
        if (!member)
            abort();
        *member = (struct crew_member){crew, i};
        if (pthread_create(&crew->threads[i], NULL, crew_member_main, member))
            abort();
    }
}

static void crew_end(struct crew *crew) {
    for (int i = 1; i < crew->count; i++) {
        crew_do(crew, i, NULL, NULL);
        pthread_join(crew->threads[i], NULL);
    }
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->lock);
}

#endif
