//! The tile registers of AMX: setting them up, and their instructions, one function each.
//! Knows nothing of matrices. The intrinsics are not stable, so each is a line of assembly.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

/// Bytes of a tile's row, and rows of a tile.
pub(super) const TILE_ROW_BYTES: usize = 64;
pub(super) const TILE_ROWS: usize = 16;
pub(super) const TILE_BYTES: usize = TILE_ROW_BYTES * TILE_ROWS;

/// All eight tiles with 16 rows of 64 bytes, as LDTILECFG reads it.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: TileConfig = {
    let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let mut i = 0;
    while i < 8 {
        config.row_bytes[i] = TILE_ROW_BYTES as u16;
        config.rows[i] = TILE_ROWS as u8;
        i += 1;
    }
    config
};

/// One instruction. Tiles keep their values from one to the next: assembly that is not `pure` stays in order, and the
/// compiler itself never uses a tile, since no function is compiled for AMX.
macro_rules! tile_asm {
    ($($instruction:tt)*) => {{
        #[cfg(target_arch = "x86_64")]
        asm!($($instruction)*);
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("the AMX path is never chosen where there are no tiles");
    }};
}

/// The tile registers of this thread, set up while it lives.
pub(crate) struct Tiles {
    /// Tiles belong to a thread.
    here: std::marker::PhantomData<*const ()>,
}

impl Tiles {
    /// # Safety
    /// The machine has AMX and the process was granted the tile state.
    pub(crate) unsafe fn configure() -> Self {
        // SAFETY: the caller vouches for AMX; the configuration is 64 valid bytes.
        unsafe { tile_asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags)) };
        Self { here: std::marker::PhantomData }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // Idle tiles save the kernel from storing 8 KiB at each switch of threads.
        // SAFETY: the tiles were configured by this thread.
        unsafe { tile_asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Where a tile that is read should stay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// In the first cache: it is read again soon.
    Near,
    /// In the second cache alone, so that it drives nothing out of the first.
    Far,
}

/// # Safety
/// As all functions below: the tiles of this thread are configured.
#[inline(always)]
pub(crate) unsafe fn zero<const TILE: u8>() {
    // SAFETY: the caller vouches for the tiles.
    unsafe { tile_asm!("tilezero tmm{}", const TILE, options(nomem, nostack, preserves_flags)) };
}

/// Reads a tile whose rows lie end to end.
///
/// # Safety
/// `from` is valid for `TILE_BYTES`.
#[inline(always)]
pub(crate) unsafe fn load<const TILE: u8>(from: *const u8, keep: Keep) {
    // SAFETY: the caller vouches for the tiles and the memory, which is only read.
    unsafe {
        match keep {
            Keep::Near => tile_asm!(
                "tileloadd tmm{}, [{} + {}]", const TILE, in(reg) from, in(reg) TILE_ROW_BYTES,
                options(readonly, nostack, preserves_flags)
            ),
            Keep::Far => tile_asm!(
                "tileloaddt1 tmm{}, [{} + {}]", const TILE, in(reg) from, in(reg) TILE_ROW_BYTES,
                options(readonly, nostack, preserves_flags)
            ),
        }
    }
}

/// Reads a tile whose rows lie `row_bytes` apart.
///
/// # Safety
/// `from` is valid for all 16 of them.
#[inline(always)]
pub(crate) unsafe fn load_apart<const TILE: u8>(from: *const u8, row_bytes: usize) {
    // SAFETY: the caller vouches for the tiles and the memory, which is only read.
    unsafe {
        tile_asm!(
            "tileloadd tmm{}, [{} + {}]", const TILE, in(reg) from, in(reg) row_bytes,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// Writes a tile's rows `row_bytes` apart.
///
/// # Safety
/// `to` is valid for all 16 of them.
#[inline(always)]
pub(crate) unsafe fn store<const TILE: u8>(to: *mut u8, row_bytes: usize) {
    // SAFETY: the caller vouches for the tiles and the memory.
    unsafe {
        tile_asm!(
            "tilestored [{} + {}], tmm{}", in(reg) to, in(reg) row_bytes, const TILE,
            options(nostack, preserves_flags)
        );
    }
}

/// A pair of number formats that tiles multiply.
pub(crate) trait TileKind {
    /// Adds the product of two tiles to a third.
    ///
    /// # Safety
    /// The tiles are configured.
    unsafe fn multiply_add<const C: u8, const A: u8, const B: u8>();
}

/// bf16 times bf16, sums in f32.
pub(crate) struct Bf16Tiles;

/// Unsigned times signed bytes, sums in i32.
pub(crate) struct U8I8Tiles;

/// Signed times unsigned bytes, sums in i32.
pub(crate) struct I8U8Tiles;

impl TileKind for Bf16Tiles {
    #[inline(always)]
    unsafe fn multiply_add<const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller vouches for the tiles.
        unsafe {
            tile_asm!(
                "tdpbf16ps tmm{}, tmm{}, tmm{}", const C, const A, const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

impl TileKind for U8I8Tiles {
    #[inline(always)]
    unsafe fn multiply_add<const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller vouches for the tiles.
        unsafe {
            tile_asm!(
                "tdpbusd tmm{}, tmm{}, tmm{}", const C, const A, const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

impl TileKind for I8U8Tiles {
    #[inline(always)]
    unsafe fn multiply_add<const C: u8, const A: u8, const B: u8>() {
        // SAFETY: the caller vouches for the tiles.
        unsafe {
            tile_asm!(
                "tdpbsud tmm{}, tmm{}, tmm{}", const C, const A, const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}
