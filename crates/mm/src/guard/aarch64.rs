//! The guarded instructions for aarch64: plain loops, aligned on the side that others watch,
//! ascending.

use core::arch::global_asm;

// one block: that alone keeps the routines together and in order
global_asm!(
    r#"
    .pushsection .text.peerdma_guard,"ax",@progbits

    .macro peerdma_guard_function name
    .p2align 4
    .globl \name
    .hidden \name
    .type \name,@function
    \name:
    .endm

    // x0 destination, x1 source, x2 bytes; \aligned is the side that others watch. \store is the
    // store of everything after the last whole word but one: others poll the last byte, so it must
    // not become visible before what precedes it
    .macro peerdma_guard_copy name, aligned, store
    peerdma_guard_function \name
    2:
        tst     \aligned, #7
        b.ne    4f
        cmp     x2, #16
        b.lo    3f
        ldr     x3, [x1], #8
        str     x3, [x0], #8
        sub     x2, x2, #8
        b       2b
    3:
        cmp     x2, #8
        b.lo    4f
        ldr     x3, [x1], #8
        \store  x3, [x0]
        add     x0, x0, #8
        sub     x2, x2, #8
        b       2b
    4:
        cbz     x2, 9f
        tst     \aligned, #3
        b.ne    5f
        cmp     x2, #4
        b.lo    5f
        ldr     w3, [x1], #4
        \store  w3, [x0]
        add     x0, x0, #4
        sub     x2, x2, #4
        b       2b
    5:
        tst     \aligned, #1
        b.ne    6f
        cmp     x2, #2
        b.lo    6f
        ldrh    w3, [x1], #2
        \store\()h w3, [x0]
        add     x0, x0, #2
        sub     x2, x2, #2
        b       2b
    6:
        ldrb    w3, [x1], #1
        \store\()b w3, [x0]
        add     x0, x0, #1
        sub     x2, x2, #1
        b       2b
    9:
        mov     x0, #0
        ret
    .endm

    .globl peerdma_guard_begin
    .hidden peerdma_guard_begin
    peerdma_guard_begin:

    peerdma_guard_copy peerdma_guard_copy_to, x0, stlr
    peerdma_guard_copy peerdma_guard_copy_from, x1, str

    peerdma_guard_function peerdma_guard_fill           // x0 address, w1 byte, x2 bytes
    2:
        cbz     x2, 3f
        strb    w1, [x0], #1
        sub     x2, x2, #1
        b       2b
    3:
        mov     x0, #0
        ret

    peerdma_guard_function peerdma_guard_touch_read     // x0 address
        ldrb    w1, [x0]
        mov     x0, #0
        ret

    // x0 address; storing back exclusively makes the page writable without losing a concurrent
    // store
    peerdma_guard_function peerdma_guard_touch_write
    2:
        ldaxrb  w1, [x0]
        stlxrb  w2, w1, [x0]
        cbnz    w2, 2b
        mov     x0, #0
        ret

    // x0 address, x1 compare, x2 swap, x3 where the old value goes
    peerdma_guard_function peerdma_guard_compare_swap
    2:
        ldaxr   x4, [x0]
        cmp     x4, x1
        b.ne    3f
        stlxr   w5, x2, [x0]
        cbnz    w5, 2b
    3:
        clrex
        str     x4, [x3]
        mov     x0, #0
        ret

    // x0 address, x1 addend, x2 where the old value goes
    peerdma_guard_function peerdma_guard_fetch_add
    2:
        ldaxr   x4, [x0]
        add     x5, x4, x1
        stlxr   w6, x5, [x0]
        cbnz    w6, 2b
        str     x4, [x2]
        mov     x0, #0
        ret

    .globl peerdma_guard_end
    .hidden peerdma_guard_end
    peerdma_guard_end:

    // where the handler sends a faulting instruction
    peerdma_guard_function peerdma_guard_fixup
        mov     x0, #1
        ret

    .purgem peerdma_guard_function
    .purgem peerdma_guard_copy
    .popsection
    "#
);

/// Program counter of an interrupted context.
pub(super) fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Lets an interrupted context go on at `pc`.
pub(super) fn set_pc(context: &mut libc::ucontext_t, pc: usize) {
    context.uc_mcontext.pc = pc as u64;
}
