//! The guarded instructions for aarch64: plain loops, aligned on the side that others watch, ascending.

use core::arch::global_asm;

macro_rules! copy_routine {
    ($name:literal, $aligned:literal) => {
        global_asm!(
            concat!(
                ".p2align 4\n.globl ",
                $name,
                "\n.hidden ",
                $name,
                "\n.type ",
                $name,
                ",@function\n",
                $name,
                ":"
            ),
            // x0 destination, x1 source, x2 bytes; x0 0 = done
            "2:",
            concat!("tst ", $aligned, ", #7"),
            "b.ne 3f",
            "cmp x2, #8",
            "b.lo 3f",
            "ldr x3, [x1], #8",
            "str x3, [x0], #8",
            "sub x2, x2, #8",
            "b 2b",
            "3:",
            "cbz x2, 9f",
            concat!("tst ", $aligned, ", #3"),
            "b.ne 4f",
            "cmp x2, #4",
            "b.lo 4f",
            "ldr w3, [x1], #4",
            "str w3, [x0], #4",
            "sub x2, x2, #4",
            "b 2b",
            "4:",
            "ldrb w3, [x1], #1",
            "strb w3, [x0], #1",
            "sub x2, x2, #1",
            "b 2b",
            "9:",
            "mov x0, #0",
            "ret",
        );
    };
}

global_asm!(
    ".pushsection .text.peerdma_guard,\"ax\",@progbits",
    ".globl peerdma_guard_begin",
    ".hidden peerdma_guard_begin",
    "peerdma_guard_begin:"
);
copy_routine!("peerdma_guard_copy_to", "x0");
copy_routine!("peerdma_guard_copy_from", "x1");
global_asm!(
    ".globl peerdma_guard_fill",
    ".hidden peerdma_guard_fill",
    "peerdma_guard_fill:",
    "2:",
    "cbz x2, 3f",
    "strb w1, [x0], #1",
    "sub x2, x2, #1",
    "b 2b",
    "3:",
    "mov x0, #0",
    "ret",
    ".globl peerdma_guard_touch_read",
    ".hidden peerdma_guard_touch_read",
    "peerdma_guard_touch_read:",
    "ldrb w1, [x0]",
    "mov x0, #0",
    "ret",
    ".globl peerdma_guard_touch_write",
    ".hidden peerdma_guard_touch_write",
    "peerdma_guard_touch_write:",
    "2:",
    "ldaxrb w1, [x0]",
    "stlxrb w2, w1, [x0]",
    "cbnz w2, 2b",
    "mov x0, #0",
    "ret",
    ".globl peerdma_guard_compare_swap",
    ".hidden peerdma_guard_compare_swap",
    "peerdma_guard_compare_swap:",
    "2:",
    "ldaxr x4, [x0]",
    "cmp x4, x1",
    "b.ne 3f",
    "stlxr w5, x2, [x0]",
    "cbnz w5, 2b",
    "3:",
    "clrex",
    "str x4, [x3]",
    "mov x0, #0",
    "ret",
    ".globl peerdma_guard_fetch_add",
    ".hidden peerdma_guard_fetch_add",
    "peerdma_guard_fetch_add:",
    "2:",
    "ldaxr x4, [x0]",
    "add x5, x4, x1",
    "stlxr w6, x5, [x0]",
    "cbnz w6, 2b",
    "str x4, [x2]",
    "mov x0, #0",
    "ret",
    ".globl peerdma_guard_end",
    ".hidden peerdma_guard_end",
    "peerdma_guard_end:",
    ".globl peerdma_guard_fixup",
    ".hidden peerdma_guard_fixup",
    "peerdma_guard_fixup:",
    "mov x0, #1",
    "ret",
    ".popsection",
);

/// Program counter of an interrupted context.
pub(super) fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Lets an interrupted context go on at `pc`.
pub(super) fn set_pc(context: &mut libc::ucontext_t, pc: usize) {
    context.uc_mcontext.pc = pc as u64;
}
