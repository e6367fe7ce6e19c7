/* Calls with wrong pointers, numbers and structures: each is an error with a number. */
#include <memferry_engine.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void check(int line, int got, int expected) {
    if (got != expected) {
        printf("line %d: got %d instead of %d\n", line, got, expected);
        failures++;
    }
}
#define CHECK(got, expected) check(__LINE__, (got), (expected))

static int serve(mf_engine_process *engine, void *context) {
    (void)engine;
    (void)context;
    return 0;
}

static mf_engine_options options(void) {
    mf_engine_options options = MF_ENGINE_OPTIONS_INIT;
    options.socket = "/nonexistent/memferry.sock";
    options.name = "copies";
    return options;
}

int main(void) {
    mf_engine_options wrong = options();
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_SERVICE);
    CHECK(mf_engine_run(NULL, serve, NULL), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_run(&wrong, NULL, NULL), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_run((mf_engine_options *)((char *)&wrong + 1), serve, NULL), MF_ENGINE_ERROR_BAD_POINTER);

    wrong = options(), wrong.size--;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_VERSION);
    wrong = options(), wrong.socket = NULL;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_BAD_POINTER);
    wrong = options(), wrong.name = NULL;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_BAD_POINTER);
    wrong = options(), wrong.name = "No Such Name";
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.name = "\xff";
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.operations = 0;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.operations = 1u << 31;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.alignment_bytes = 3;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.channels = 0;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    wrong = options(), wrong.longest_bytes = 0;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_ARGUMENT);
    char path[300];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    wrong = options(), wrong.socket = path;
    CHECK(mf_engine_run(&wrong, serve, NULL), MF_ENGINE_ERROR_SERVICE);

    mf_engine_request request;
    CHECK(mf_engine_next(NULL, &request, 0), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_next((mf_engine_process *)1, &request, 0), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_complete(NULL, 0, 0, 0, 0), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_progress(NULL, 0, 0, false), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_is_cancelled(NULL, 0), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_take_cancels(NULL), MF_ENGINE_ERROR_BAD_POINTER);
    CHECK(mf_engine_watch_frames(NULL, NULL, NULL, NULL, NULL, NULL), MF_ENGINE_ERROR_BAD_POINTER);
    return failures != 0;
}
