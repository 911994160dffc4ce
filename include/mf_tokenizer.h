/*
 * The C ABI of the tokenizer library (tokenizers/): one tokenizer.json, text in, ids out.
 *
 * Added tokens (control tokens among them) are never recognised in a text that is encoded: the
 * caller splits a text at the spellings that may become control tokens and looks their ids up in the
 * description. Handles are never reused and may be used from every thread. The last error and the
 * last result belong to the calling thread.
 */
#ifndef MF_TOKENIZER_H
#define MF_TOKENIZER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MF_TOKENIZER_ABI_VERSION 1u

enum {
    MF_TOKENIZER_OK = 0,
    MF_TOKENIZER_ERROR = 1,     /* mf_tokenizer_last_error has the sentence */
    MF_TOKENIZER_NOT_FOUND = 2, /* no such piece or id; not an error */
};

uint32_t mf_tokenizer_abi_version(void);

/* Copies up to `capacity` bytes of this thread's last error (UTF-8, no terminator) and returns its
 * whole length. */
uint32_t mf_tokenizer_last_error(uint8_t *target, uint32_t capacity);

/* Loads a tokenizer.json. `path` is UTF-8 without a terminator. Freed memory is given back to the
 * system before it returns. */
int32_t mf_tokenizer_open(const uint8_t *path, uint32_t length, uint32_t *handle);
int32_t mf_tokenizer_close(uint32_t handle);

/* One more than the largest id of the model's own pieces; added tokens may have larger ones. */
int32_t mf_tokenizer_model_size(uint32_t handle, uint32_t *size);

/* Each of these keeps a result for mf_tokenizer_result and stores its size in bytes. */
/* JSON: normalizer, pre_tokenizer, decoder, added_tokens and the model's kind, without its tables. */
int32_t mf_tokenizer_describe(uint32_t handle, uint32_t *size);
/* The ids of a UTF-8 text, as uint32_t in this machine's byte order. */
int32_t mf_tokenizer_encode(uint32_t handle, const uint8_t *text, uint32_t length, uint32_t *size);
/* The spelling of an id in the model's vocabulary. */
int32_t mf_tokenizer_piece(uint32_t handle, uint32_t id, uint32_t *size);

/* The id of a spelling in the model's vocabulary. */
int32_t mf_tokenizer_id(uint32_t handle, const uint8_t *piece, uint32_t length, uint32_t *id);

/* Copies up to `capacity` bytes of this thread's last result, forgets it, and returns its whole
 * length. */
uint32_t mf_tokenizer_result(uint8_t *target, uint32_t capacity);

#ifdef __cplusplus
}
#endif

#endif
