#include "internal.h"

// The switch saves what the C calling convention wants preserved across a call, and nothing else: no
// signal mask (that is what makes ucontext slow) and no floating-point control words, because kernels
// cannot change them.

#if defined(__x86_64__)

__asm__(
    ".text\n"
    ".p2align 4\n"
    ".globl softmetal_switch\n"
    ".hidden softmetal_switch\n"
    ".type softmetal_switch, @function\n"
    "softmetal_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size softmetal_switch, .-softmetal_switch\n");

void *softmetal_prepare_stack(void *top, void (*entry)(void)) {
    void **sp = top;
    *--sp = 0;                           // the return address of `entry`, which never returns
    *--sp = (void *)entry;               // where the switch returns to; leaves the stack 8 mod 16
    for (int i = 0; i < 6; i++) *--sp = 0;
    return sp;
}

#elif defined(__aarch64__)

__asm__(
    ".text\n"
    ".p2align 4\n"
    ".globl softmetal_switch\n"
    ".hidden softmetal_switch\n"
    ".type softmetal_switch, %function\n"
    "softmetal_switch:\n"
    "    stp x19, x20, [sp, #-160]!\n"
    "    stp x21, x22, [sp, #16]\n"
    "    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n"
    "    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n"
    "    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x21, x22, [sp, #16]\n"
    "    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n"
    "    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n"
    "    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    ldp x19, x20, [sp], #160\n"
    "    ret\n"
    ".size softmetal_switch, .-softmetal_switch\n");

void *softmetal_prepare_stack(void *top, void (*entry)(void)) {
    void **sp = (void **)top - 20;
    for (int i = 0; i < 20; i++) sp[i] = 0;
    sp[11] = (void *)entry;              // x30, the link register
    return sp;
}

#else
#error "no context switch for this processor"
#endif
