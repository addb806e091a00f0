//! Copies with inline assembly.
//!
//! A short copy moves its first and its last bytes, and the two parts may overlap. A longer copy loops over vector registers
//! and moves its last bytes in the same way. These copies are faster than `memcpy` up to 64 bytes, and equally fast from 2
//! KiB on. In between, `memcpy` uses 64-byte registers and takes 8 ns; these copies take up to twice as long.

use std::arch::asm;
use std::mem::MaybeUninit;

/// Length, in bytes, below which 16-byte vectors are as fast as longer ones.
const WIDE: usize = 256;
/// Minimum length, in bytes, of copies that use the processor's string move. From this length on, it is as fast as vectors.
/// `memcpy` with 32-byte registers has the same threshold.
const STRING: usize = 4096;

/// See [`super::read`].
pub(super) unsafe fn read(from: *const u8, into: &mut [MaybeUninit<u8>]) {
    // SAFETY: the caller's contract; `into` is exclusive.
    unsafe { copy(from, into.as_mut_ptr().cast(), into.len()) }
}

/// See [`super::write`].
pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// See [`super::between`].
pub(super) unsafe fn between(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy(from, to, length) }
}

/// Copies `length` bytes. If the ranges overlap, the written bytes are unspecified.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes.
unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    match length {
        0 => {}
        // SAFETY: this function's contract, for a length that the callee accepts.
        1..4 => unsafe { bytes(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        4..8 => unsafe { ends_of_4(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        8..16 => unsafe { ends_of_8(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        16..=32 => unsafe { ends_of_16(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        33..WIDE => unsafe { narrow(from, to, length) },
        // SAFETY: same as above, and the processor supports AVX.
        WIDE..STRING if std::arch::is_x86_feature_detected!("avx") => unsafe { wide(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        WIDE..STRING => unsafe { narrow(from, to, length) },
        // SAFETY: this function's contract, for a length that the callee accepts.
        _ => unsafe { string(from, to, length) },
    }
}

/// Moves one byte at a time.
///
/// # Safety
/// Same as [`copy`], for 1 to 3 bytes.
unsafe fn bytes(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the assembly reads and writes `length` bytes starting at the two addresses; the caller guarantees the ranges.
    unsafe {
        asm!(
            "2:",
            "movzx {byte:e}, byte ptr [{from} + {left} - 1]",
            "mov byte ptr [{to} + {left} - 1], {byte:l}",
            "dec {left}",
            "jnz 2b",
            from = in(reg) from, to = in(reg) to, left = inout(reg) length => _, byte = out(reg) _,
            options(nostack),
        );
    }
}

/// Moves the first and the last 4 bytes.
///
/// # Safety
/// Same as [`copy`], for 4 to 8 bytes.
unsafe fn ends_of_4(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the assembly moves the first and the last 4 bytes of the ranges that the caller guarantees.
    unsafe {
        asm!(
            "mov {first:e}, dword ptr [{from}]",
            "mov {last:e}, dword ptr [{from} + {length} - 4]",
            "mov dword ptr [{to}], {first:e}",
            "mov dword ptr [{to} + {length} - 4], {last:e}",
            from = in(reg) from, to = in(reg) to, length = in(reg) length,
            first = out(reg) _, last = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Moves the first and the last 8 bytes.
///
/// # Safety
/// Same as [`copy`], for 8 to 16 bytes.
unsafe fn ends_of_8(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the assembly moves the first and the last 8 bytes of the ranges that the caller guarantees.
    unsafe {
        asm!(
            "mov {first}, qword ptr [{from}]",
            "mov {last}, qword ptr [{from} + {length} - 8]",
            "mov qword ptr [{to}], {first}",
            "mov qword ptr [{to} + {length} - 8], {last}",
            from = in(reg) from, to = in(reg) to, length = in(reg) length,
            first = out(reg) _, last = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Moves the first and the last 16 bytes.
///
/// # Safety
/// Same as [`copy`], for 16 to 32 bytes.
unsafe fn ends_of_16(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the assembly moves the first and the last 16 bytes of the ranges that the caller guarantees.
    unsafe {
        asm!(
            "movdqu xmm0, xmmword ptr [{from}]",
            "movdqu xmm1, xmmword ptr [{from} + {length} - 16]",
            "movdqu xmmword ptr [{to}], xmm0",
            "movdqu xmmword ptr [{to} + {length} - 16], xmm1",
            from = in(reg) from, to = in(reg) to, length = in(reg) length,
            out("xmm0") _, out("xmm1") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Moves 32 bytes at a time.
///
/// # Safety
/// Same as [`copy`], for 32 bytes or more.
unsafe fn narrow(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the last 32 bytes are read first and written at the end; until then the assembly moves 32 bytes at a time, as
    // long as more than 32 are left. All are in the ranges that the caller guarantees.
    unsafe {
        asm!(
            "movdqu xmm2, xmmword ptr [{from} + {left} - 32]",
            "movdqu xmm3, xmmword ptr [{from} + {left} - 16]",
            "lea {end}, [{to} + {left} - 32]",
            "2:",
            "movdqu xmm0, xmmword ptr [{from}]",
            "movdqu xmm1, xmmword ptr [{from} + 16]",
            "movdqu xmmword ptr [{to}], xmm0",
            "movdqu xmmword ptr [{to} + 16], xmm1",
            "add {from}, 32",
            "add {to}, 32",
            "sub {left}, 32",
            "cmp {left}, 32",
            "ja 2b",
            "movdqu xmmword ptr [{end}], xmm2",
            "movdqu xmmword ptr [{end} + 16], xmm3",
            from = inout(reg) from => _, to = inout(reg) to => _, left = inout(reg) length => _, end = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

/// Moves 128 bytes at a time.
///
/// # Safety
/// Same as [`copy`], for 128 bytes or more, on a processor with AVX.
unsafe fn wide(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: same as in `narrow`, with 128 bytes; the caller guarantees that the processor supports AVX. The upper halves
    // of the registers are cleared, as code without AVX expects.
    unsafe {
        asm!(
            "vmovdqu ymm4, ymmword ptr [{from} + {left} - 128]",
            "vmovdqu ymm5, ymmword ptr [{from} + {left} - 96]",
            "vmovdqu ymm6, ymmword ptr [{from} + {left} - 64]",
            "vmovdqu ymm7, ymmword ptr [{from} + {left} - 32]",
            "lea {end}, [{to} + {left} - 128]",
            "2:",
            "vmovdqu ymm0, ymmword ptr [{from}]",
            "vmovdqu ymm1, ymmword ptr [{from} + 32]",
            "vmovdqu ymm2, ymmword ptr [{from} + 64]",
            "vmovdqu ymm3, ymmword ptr [{from} + 96]",
            "vmovdqu ymmword ptr [{to}], ymm0",
            "vmovdqu ymmword ptr [{to} + 32], ymm1",
            "vmovdqu ymmword ptr [{to} + 64], ymm2",
            "vmovdqu ymmword ptr [{to} + 96], ymm3",
            "sub {from}, -128",
            "sub {to}, -128",
            "add {left}, -128",
            "cmp {left}, 128",
            "ja 2b",
            "vmovdqu ymmword ptr [{end}], ymm4",
            "vmovdqu ymmword ptr [{end} + 32], ymm5",
            "vmovdqu ymmword ptr [{end} + 64], ymm6",
            "vmovdqu ymmword ptr [{end} + 96], ymm7",
            "vzeroupper",
            from = inout(reg) from => _, to = inout(reg) to => _, left = inout(reg) length => _, end = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Uses the processor's string move.
///
/// # Safety
/// Same as [`copy`].
unsafe fn string(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the assembly moves `length` bytes starting at the two addresses; the caller guarantees the ranges. The
    // direction flag is clear, as the ABI demands.
    unsafe {
        asm!(
            "rep movsb",
            inout("rsi") from => _, inout("rdi") to => _, inout("rcx") length => _,
            options(nostack, preserves_flags),
        );
    }
}
