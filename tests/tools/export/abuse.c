/* Two exported libraries in one program: what is right, what is wrong, and threads. Compiled with the sanitizers, which
   end it at the first access outside of an array: each has its exact size. */
#include "counting.h"
#include "words.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                            \
    do {                                                       \
        if (!(what)) {                                         \
            printf("line %d: not so: %s\n", __LINE__, #what); \
            exit(1);                                           \
        }                                                      \
    } while (0)

static void *content(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *found = malloc(*bytes);
    CHECK(found != NULL && fread(found, 1, *bytes, file) == *bytes);
    fclose(file);
    return found;
}

/* --- files: every bit of the header, every length, bits of the rest ------------------------------------------- */
static words_status of_content(const void *data, size_t bytes) {
    words_model *model = NULL;
    const words_options options = {1, NULL, 0};
    void *exact = malloc(bytes > 0 ? bytes : 1);
    CHECK(exact != NULL);
    memcpy(exact, data, bytes);
    const words_status status = words_load_bytes(exact, bytes, &options, &model);
    CHECK(model != NULL && (status == WORDS_OK) == (words_message(model)[0] == '\0'));
    CHECK((status == WORDS_OK) == (words_target(model)[0] != '\0'));
    if (status != WORDS_OK) {
        const void *inputs[2] = {data, data};
        void *outputs[2] = {exact, exact};
        CHECK(words_run(model, inputs, 1, outputs) == WORDS_WRONG_ARGUMENT);
        words_model *another = NULL;
        CHECK(words_share(model, NULL, &another) == WORDS_WRONG_ARGUMENT && another != NULL);
        words_free(another);
    }
    words_free(model);
    free(exact);
    return status;
}

static void damage(const char *path, const char *other) {
    size_t bytes, other_bytes;
    unsigned char *data = content(path, &bytes), *another = content(other, &other_bytes);
    unsigned header = 0;
    memcpy(&header, data + 60, 4);
    CHECK(of_content(data, bytes) == WORDS_OK && header < bytes);
    CHECK(of_content(another, other_bytes) == WORDS_OTHER_MODEL);
    for (size_t at = 0; at < header; at++) {
        for (int bit = 0; bit < 8; bit++) {
            data[at] ^= (unsigned char)(1 << bit);
            CHECK(of_content(data, bytes) != WORDS_OK);
            data[at] ^= (unsigned char)(1 << bit);
        }
    }
    for (size_t count = 0; count < bytes; count += count < header + 64 ? 1 : 61) {
        CHECK(of_content(data, count) != WORDS_OK);
    }
    free(data);
    free(another);
}

/* --- runs ------------------------------------------------------------------------------------------------------ */
typedef struct Call {
    words_model *model;
    long items;
    int *words;
    float *extra, *both, *scores;
} Call;

static Call new_call(words_model *model, long items) {
    const size_t count = (size_t)items;
    /* A caller's arrays need not be aligned as ours are. */
    Call made = {model, items, malloc(count * 6 * 4), malloc(count * 4 * 4), malloc(count * 13 * 4), malloc(count * 3 * 4)};
    CHECK(made.words != NULL && made.extra != NULL && made.both != NULL && made.scores != NULL);
    for (long i = 0; i < items * 6; i++) {
        made.words[i] = (int)(i * 7 % 11);
    }
    for (long i = 0; i < items * 4; i++) {
        made.extra[i] = (float)(i % 5) - 2.0f;
    }
    return made;
}

static words_status run(const Call *call) {
    const void *inputs[] = {call->words, call->extra};
    void *outputs[] = {call->both, call->scores};
    return words_run(call->model, inputs, call->items, outputs);
}

static void end_call(Call *call) {
    free(call->words);
    free(call->extra);
    free(call->both);
    free(call->scores);
}

static int same(const Call *a, const Call *b) {
    return memcmp(a->both, b->both, (size_t)a->items * 13 * 4) == 0 && memcmp(a->scores, b->scores, (size_t)a->items * 3 * 4) == 0;
}

static void *in_thread(void *argument) {
    Call own = new_call(((Call *)argument)->model, ((Call *)argument)->items);
    for (int i = 0; i < 10; i++) {
        CHECK(run(&own) == WORDS_OK && same(&own, argument));
    }
    end_call(&own);
    return NULL;
}

static void threads(const char *path) {
    const words_options two = {2, NULL, 0};
    words_model *model = NULL;
    CHECK(words_load(path, &two, &model) == WORDS_OK);
    for (long items = 1; items < 9; items++) {
        Call expected = new_call(model, items);
        CHECK(run(&expected) == WORDS_OK);
        pthread_t started[3];
        for (int i = 0; i < 3; i++) { /* one model: they take turns */
            CHECK(pthread_create(&started[i], NULL, in_thread, &expected) == 0);
        }
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_join(started[i], NULL) == 0);
        }
        int well = 0;
#pragma omp parallel num_threads(3) reduction(+ : well)
        { /* kernels share their work among the model's threads, not among these */
            words_model *own = NULL;
            if (words_share(model, &two, &own) == WORDS_OK) {
                Call call = new_call(own, items);
                well += run(&call) == WORDS_OK && same(&call, &expected);
                end_call(&call);
            }
            words_free(own);
        }
        CHECK(well == 3);
        expected.words[items * 6 - 1] = 11;
        float before = expected.scores[0];
        CHECK(run(&expected) == WORDS_BAD_INPUT && expected.scores[0] == before);
        end_call(&expected);
    }
    words_free(model);
}

static void wrong_calls(const char *path) {
    words_model *model = NULL;
    CHECK(words_load(NULL, NULL, &model) == WORDS_WRONG_ARGUMENT && model != NULL);
    words_free(model);
    CHECK(words_load(path, NULL, NULL) == WORDS_WRONG_ARGUMENT);
    CHECK(words_load_bytes(NULL, 5, NULL, &model) == WORDS_WRONG_ARGUMENT);
    words_free(model);
    CHECK(words_load_bytes(path, 5, NULL, NULL) == WORDS_WRONG_ARGUMENT);
    CHECK(words_load("/", NULL, &model) == WORDS_NO_FILE);
    words_free(model);
    CHECK(words_share(NULL, NULL, &model) == WORDS_WRONG_ARGUMENT);
    words_free(model);
    CHECK(words_run(NULL, NULL, 1, NULL) == WORDS_WRONG_ARGUMENT);
    CHECK(words_load(path, NULL, &model) == WORDS_OK);
    CHECK(words_share(model, NULL, NULL) == WORDS_WRONG_ARGUMENT);
    CHECK(words_run(model, NULL, 1, NULL) == WORDS_WRONG_ARGUMENT);
    CHECK(words_input(-1) == NULL && words_input(2) == NULL && words_output(2) == NULL);
    CHECK(words_input(0)->below == 11 && words_input(1)->shape[0] == 4 && words_output(1)->count == 3);
    words_free(model);
    words_free(NULL);
}

static void two_libraries(const char *path) {
    counting_model *first = NULL, *second = NULL;
    CHECK(counting_load(path, NULL, &first) == COUNTING_OK && counting_share(first, NULL, &second) == COUNTING_OK);
    float data[3] = {1.0f, 2.0f, 3.0f}, values[3];
    const void *inputs[] = {data};
    void *outputs[] = {values};
    for (int i = 1; i < 4; i++) {
        CHECK(counting_run(first, inputs, 1, outputs) == COUNTING_OK);
        CHECK(values[0] == 2.0f + (float)i && values[1] == 6.0f + (float)i && values[2] == 15.0f + (float)i);
    }
    counting_free(first);
    CHECK(counting_run(second, inputs, 1, outputs) == COUNTING_OK && values[0] == 3.0f);
    counting_free(second);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    two_libraries(arguments[1]);
    wrong_calls(arguments[2]);
    damage(arguments[2], arguments[1]);
    threads(arguments[2]);
    printf("all as expected\n");
    return 0;
}
