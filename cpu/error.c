// The sentence behind a negative status, one for each thread.
#include "mf_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];

int32_t mf_error(int32_t status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

int32_t mf_last_error(char *text, uint32_t capacity) {
  if (text == NULL || capacity == 0) return MF_ERR_ARGUMENT;
  size_t length = strlen(last_error);
  if (length >= capacity) {
    length = capacity - 1;
    // Cut before a UTF-8 sequence, not in it.
    while (length > 0 && ((unsigned char)last_error[length] & 0xC0) == 0x80) length--;
  }
  memcpy(text, last_error, length);
  text[length] = '\0';
  return MF_OK;
}
