//! Matrix products on AMX tiles: bf16 pairs or int8 quadruples against packed panels, sums in 32 bits.
//! The intrinsics are not stable, so each inner loop is one block of assembly.

use crate::cpu::acts::PANEL;
#[cfg(target_arch = "x86_64")]
use std::arch::asm;

/// Bytes of a tile's row, and rows of a tile.
const TILE_ROW_BYTES: usize = 64;
const TILE_ROWS: usize = 16;
const TILE_BYTES: usize = TILE_ROW_BYTES * TILE_ROWS;
const ELEMENT_BYTES_C: usize = 4;

/// Bytes of `a` that one step along `k` takes from each row: 32 bf16 or 64 bytes.
pub(in crate::cpu) const STEP_BYTES: usize = TILE_ROW_BYTES;
/// Bytes of a panel for one step: two tiles.
pub(in crate::cpu) const PANEL_STEP_BYTES: usize = 2 * TILE_BYTES;
/// Rows of a block: the sums of two tiles of rows are 4 KiB, which stay in the first cache until they are finished.
pub(in crate::cpu) const BLOCK_ROWS: usize = 2 * TILE_ROWS;
/// Bytes that a step fetches ahead.
pub(in crate::cpu) const FETCH_BYTES: usize = 512;
/// Rows are read in whole tiles: buffers hold this many rows more than they use.
pub(in crate::cpu) const ROWS_READ_BEYOND: usize = 2 * TILE_ROWS;
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

/// The tile registers of this thread, set up while it lives.
pub(in crate::cpu) struct Tiles {
    /// Tiles belong to a thread.
    here: std::marker::PhantomData<*const ()>,
}

impl Tiles {
    /// # Safety
    /// The machine has AMX and the process was granted the tile state.
    pub(in crate::cpu) unsafe fn configure() -> Self {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller vouches for AMX; the configuration is 64 valid bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags));
        }
        Self { here: std::marker::PhantomData }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // Idle tiles save the kernel from storing 8 KiB at each switch of threads.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the tiles were configured by this thread.
        unsafe {
            asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}

/// What the tiles hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) enum TileKind {
    /// bf16 times bf16, sums in f32.
    Bf16,
    /// Unsigned times signed bytes, sums in i32.
    U8I8,
}

#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($pair:ident, $single:ident, $multiply:literal) => {
        /// Four tiles of sums from two of `a` and two of the panel: each load feeds two products.
        unsafe fn $pair(&self) {
            // SAFETY: `TileBlock::run`'s promise; only tile registers and the named memory are touched.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm6, [{b} + {line}]",
                    "tileloadd tmm4, [{a} + {line}]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + 64]",
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "prefetcht1 [{next} + 128]",
                    "prefetcht1 [{next} + 192]",
                    "tileloadd tmm5, [{a} + {line} + 1024]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    "prefetcht1 [{next} + 256]",
                    "prefetcht1 [{next} + 320]",
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "prefetcht1 [{next} + 384]",
                    "prefetcht1 [{next} + 448]",
                    "add {a}, {a_stride}",
                    "add {b}, 2048",
                    "add {next}, 512",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c} + {c_row}], tmm0",
                    "tilestored [{c} + {c_row} + 64], tmm1",
                    "tilestored [{c} + {c_row} + 2048], tmm2",
                    "tilestored [{c} + {c_row} + 2112], tmm3",
                    a = inout(reg) self.a => _,
                    a_stride = in(reg) self.a_stride,
                    b = inout(reg) self.panel => _,
                    next = inout(reg) self.next => _,
                    steps = inout(reg) self.steps => _,
                    c = in(reg) self.c,
                    c_row = in(reg) PANEL * ELEMENT_BYTES_C,
                    line = in(reg) TILE_ROW_BYTES,
                    options(nostack),
                );
            }
        }

        /// The last 16 rows or fewer. Weights pass once here and the hardware's own prefetching keeps up.
        unsafe fn $single(&self) {
            // SAFETY: as above.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{a} + {line}]",
                    "tileloadd tmm6, [{b} + {line}]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{b} + {line} + 1024]",
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "add {a}, {a_stride}",
                    "add {b}, 2048",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c} + {c_row}], tmm0",
                    "tilestored [{c} + {c_row} + 64], tmm1",
                    a = inout(reg) self.a => _,
                    a_stride = in(reg) self.a_stride,
                    b = inout(reg) self.panel => _,
                    steps = inout(reg) self.steps => _,
                    c = in(reg) self.c,
                    c_row = in(reg) PANEL * ELEMENT_BYTES_C,
                    line = in(reg) TILE_ROW_BYTES,
                    options(nostack),
                );
            }
        }
    };
}

/// `c[rows][PANEL] = a[rows][steps] * panel`.
pub(in crate::cpu) struct TileBlock {
    pub(in crate::cpu) kind: TileKind,
    /// Rows of 64 bytes, end to end; the next step's rows lie `a_stride` bytes on.
    pub(in crate::cpu) a: *const u8,
    pub(in crate::cpu) a_stride: usize,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) steps: usize,
    pub(in crate::cpu) panel: *const u8,
    /// Fetched into the second cache meanwhile, 512 bytes a step: the weights that follow, or any address.
    pub(in crate::cpu) next: *const u8,
    /// 32-bit sums, floats or integers by `kind`.
    pub(in crate::cpu) c: *mut u8,
}

impl TileBlock {
    /// # Safety
    /// `a` and `c` are valid for `rows` rounded up to whole tiles, `panel` for `steps`; `Tiles` shows that the thread
    /// is set up.
    pub(in crate::cpu) unsafe fn run(&self, _tiles: &Tiles) {
        const { assert!(PANEL == 2 * TILE_ROW_BYTES / ELEMENT_BYTES_C) }
        assert!(self.rows <= BLOCK_ROWS && self.steps > 0, "a block is two tiles of rows");
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("the AMX path is never chosen where there are no tiles");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        unsafe {
            match (self.kind, self.rows > TILE_ROWS) {
                (TileKind::Bf16, true) => self.bf16_pair(),
                (TileKind::Bf16, false) => self.bf16_single(),
                (TileKind::U8I8, true) => self.u8i8_pair(),
                (TileKind::U8I8, false) => self.u8i8_single(),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    kernels!(bf16_pair, bf16_single, "tdpbf16ps");
    #[cfg(target_arch = "x86_64")]
    kernels!(u8i8_pair, u8i8_single, "tdpbusd");
}
