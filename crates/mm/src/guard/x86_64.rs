//! The guarded instructions for x86-64.
//!
//! `copy_to` aligns its stores to the destination, `copy_from` its loads to the source: on the side
//! that others watch, every access is naturally aligned and ascending, so an aligned word is never
//! torn and the last byte changes last. `rep movsb` may make its stores visible out of order (Intel
//! SDM vol. 3, 9.2.4), so it moves only the body of a long copy; ordinary stores move the end.

use core::arch::global_asm;

/// Copies of at least this many bytes move their body by `rep movsb`. Fixed by measurement: below
/// it the start-up cost of the microcode exceeds what it saves.
const REP_FROM: usize = 2048;

// one block: that alone keeps the routines together and in order
global_asm!(
    r#"
    .pushsection .text.peerdma_guard,"ax",@progbits

    .macro peerdma_guard_function name
    .p2align 5
    .globl \name
    .hidden \name
    .type \name,@function
    \name:
    .endm

    # rdi destination, rsi source, rdx bytes; \aligned is the low byte of the side that others watch
    .macro peerdma_guard_copy name, aligned
    peerdma_guard_function \name
        test    \aligned, 7
        jnz     10f
    2:                              # the watched side is 8-byte aligned
        cmp     rdx, 64
        jae     20f
    3:
        sub     rdx, 8
        jb      5f
    4:
        mov     rax, [rsi]
        mov     [rdi], rax
        add     rsi, 8
        add     rdi, 8
        sub     rdx, 8
        jae     4b
    5:                              # the low 3 bits of rdx are the rest
        test    dl, 4
        jz      6f
        mov     eax, [rsi]
        mov     [rdi], eax
        add     rsi, 4
        add     rdi, 4
    6:
        test    dl, 2
        jz      7f
        movzx   eax, word ptr [rsi]
        mov     [rdi], ax
        add     rsi, 2
        add     rdi, 2
    7:
        test    dl, 1
        jz      8f
        movzx   eax, byte ptr [rsi]
        mov     [rdi], al
    8:
        xor     eax, eax
        ret

    10:                             # up to 7 bytes in naturally aligned steps
        test    \aligned, 1
        jz      11f
        cmp     rdx, 1
        jb      8b
        movzx   eax, byte ptr [rsi]
        mov     [rdi], al
        inc     rsi
        inc     rdi
        dec     rdx
    11:
        test    \aligned, 2
        jz      12f
        cmp     rdx, 2
        jb      5b
        movzx   eax, word ptr [rsi]
        mov     [rdi], ax
        add     rsi, 2
        add     rdi, 2
        sub     rdx, 2
    12:
        test    \aligned, 4
        jz      2b
        cmp     rdx, 4
        jb      5b
        mov     eax, [rsi]
        mov     [rdi], eax
        add     rsi, 4
        add     rdi, 4
        sub     rdx, 4
        jmp     2b

    20:                             # 64 bytes a turn from a 16-byte boundary of the watched side
        test    \aligned, 8
        jz      21f
        mov     rax, [rsi]
        mov     [rdi], rax
        add     rsi, 8
        add     rdi, 8
        sub     rdx, 8
    21:
        cmp     rdx, {rep_from}
        jae     30f
        sub     rdx, 64
        jb      23f
    22:
        movups  xmm0, [rsi]
        movups  xmm1, [rsi + 16]
        movups  xmm2, [rsi + 32]
        movups  xmm3, [rsi + 48]
        movups  [rdi], xmm0
        movups  [rdi + 16], xmm1
        movups  [rdi + 32], xmm2
        movups  [rdi + 48], xmm3
        add     rsi, 64
        add     rdi, 64
        sub     rdx, 64
        jae     22b
    23:
        add     rdx, 64
        jmp     3b
    30:                             # all but the last 64 to 127 bytes
        lea     rcx, [rdx - 64]
        and     rcx, -64
        sub     rdx, rcx
        rep movsb
        jmp     21b
    .endm

    .globl peerdma_guard_begin
    .hidden peerdma_guard_begin
    peerdma_guard_begin:

    peerdma_guard_copy peerdma_guard_copy_to, dil
    peerdma_guard_copy peerdma_guard_copy_from, sil

    # rdi destination, rsi source at a 64-byte boundary, rdx bytes: a multiple of 256, not 0;
    # rcx four sums and the factors
    peerdma_guard_function peerdma_guard_copy_fold
        vmovdqa64 zmm0, [rcx]
        vmovdqa64 zmm1, [rcx + 64]
        vmovdqa64 zmm2, [rcx + 128]
        vmovdqa64 zmm3, [rcx + 192]
        vmovdqa64 zmm4, [rcx + 256]
    2:
        vmovdqa64 zmm5, [rsi]
        vmovdqa64 zmm6, [rsi + 64]
        vmovdqa64 zmm7, [rsi + 128]
        vmovdqa64 zmm8, [rsi + 192]
        vpclmulqdq zmm9, zmm0, zmm4, 0x00
        vpclmulqdq zmm10, zmm1, zmm4, 0x00
        vpclmulqdq zmm11, zmm2, zmm4, 0x00
        vpclmulqdq zmm12, zmm3, zmm4, 0x00
        vpclmulqdq zmm0, zmm0, zmm4, 0x11
        vpclmulqdq zmm1, zmm1, zmm4, 0x11
        vpclmulqdq zmm2, zmm2, zmm4, 0x11
        vpclmulqdq zmm3, zmm3, zmm4, 0x11
        vmovdqu64 [rdi], zmm5
        vmovdqu64 [rdi + 64], zmm6
        vmovdqu64 [rdi + 128], zmm7
        vmovdqu64 [rdi + 192], zmm8
        vpternlogq zmm0, zmm9, zmm5, 0x96
        vpternlogq zmm1, zmm10, zmm6, 0x96
        vpternlogq zmm2, zmm11, zmm7, 0x96
        vpternlogq zmm3, zmm12, zmm8, 0x96
        add     rsi, 256
        add     rdi, 256
        sub     rdx, 256
        jnz     2b
        vmovdqa64 [rcx], zmm0
        vmovdqa64 [rcx + 64], zmm1
        vmovdqa64 [rcx + 128], zmm2
        vmovdqa64 [rcx + 192], zmm3
        vzeroupper
        xor     eax, eax
        ret

    peerdma_guard_function peerdma_guard_fill           # rdi address, sil byte, rdx bytes
        mov     eax, esi
        mov     rcx, rdx
        rep stosb
        xor     eax, eax
        ret

    peerdma_guard_function peerdma_guard_touch_read     # rdi address
        movzx   eax, byte ptr [rdi]
        xor     eax, eax
        ret

    # rdi address; adding 0 atomically makes the page writable without losing a concurrent store
    peerdma_guard_function peerdma_guard_touch_write
        lock add byte ptr [rdi], 0
        xor     eax, eax
        ret

    # rdi address, rsi compare, rdx swap, rcx where the old value goes
    peerdma_guard_function peerdma_guard_compare_swap
        mov     rax, rsi
        lock cmpxchg [rdi], rdx
        mov     [rcx], rax
        xor     eax, eax
        ret

    # rdi address, rsi addend, rdx where the old value goes
    peerdma_guard_function peerdma_guard_fetch_add
        lock xadd [rdi], rsi
        mov     [rdx], rsi
        xor     eax, eax
        ret

    .globl peerdma_guard_end
    .hidden peerdma_guard_end
    peerdma_guard_end:

    # where the handler sends a faulting instruction
    peerdma_guard_function peerdma_guard_fixup
        mov     eax, 1
        ret

    # debuggers and unwinders know a signal frame by exactly these bytes:
    # mov rax, 15 (rt_sigreturn); syscall
    peerdma_guard_function peerdma_guard_restorer
        .byte   0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00
        syscall

    .purgem peerdma_guard_function
    .purgem peerdma_guard_copy
    .popsection
    "#,
    rep_from = const REP_FROM,
);

/// Program counter of an interrupted context.
pub(super) fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Lets an interrupted context go on at `pc`.
pub(super) fn set_pc(context: &mut libc::ucontext_t, pc: usize) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = pc as libc::greg_t;
}
