//! The sums, on a tile of the state that stays in the first-level cache.
//!
//! Taken literally, a token needs the state twice: d wants S^T k of all rows before any row can change. But the sweep that
//! writes a token's S can, while it has each row in registers, also sum S^T k for the *next* token's key. So a token is
//! one sweep: a load, a store, and four operations an element, which is what the definition has. That makes the
//! multipliers the limit, not the cache.
//!
//! Each column's sums run over the rows in order. Fused multiply-add where the processor has it; elsewhere a multiply and
//! an add.
#![forbid(unsafe_code)]
use super::segment::{KeyInputs, Row, ValueInputs};
use crate::heads::HEAD_DIM;
use pulp::{Simd, WithSimd};

/// Columns of a tile: 16 KB, half of the smallest first-level cache in use.
pub(super) const COLUMNS: usize = 32;

/// All key rows of a few columns.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Tile(pub [[f32; COLUMNS]; HEAD_DIM]);

impl Tile {
    /// The state before the first token.
    pub const ZERO: Self = Self([[0.0; COLUMNS]; HEAD_DIM]);
}

/// Carries `tile` through some tokens and leaves their outputs where their values were.
pub(super) struct Advance<'a> {
    pub tile: &'a mut Tile,
    pub keys: &'a [KeyInputs],
    pub values: &'a mut [ValueInputs],
    /// The head's column that is the tile's first.
    pub column: usize,
    pub scale: f32,
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Vectors side by side: sums enough to hide a multiply-add's latency, and few enough for the registers
        // (3 a vector, and 5): 32 of them with 16 and with 4 lanes, 16 with 8.
        match S::F32_LANES {
            16 => self.blocks::<S, 2>(simd),
            8 => self.blocks::<S, 2>(simd),
            _ => self.blocks::<S, 4>(simd),
        }
    }
}

impl Advance<'_> {
    #[inline(always)]
    fn blocks<S: Simd, const N: usize>(&mut self, simd: S) {
        for block in 0..COLUMNS / (N * S::F32_LANES) {
            self.block::<S, N>(simd, block * N);
        }
    }

    /// The `N` vectors of columns from `first` on.
    #[inline(always)]
    fn block<S: Simd, const N: usize>(&mut self, simd: S, first: usize) {
        let scale = simd.splat_f32s(self.scale);
        let value_first = self.column / S::F32_LANES + first;
        let Some(key) = self.keys.first() else { return };
        let mut projected = project::<S, N>(simd, self.tile, first, &key.k);
        for (token, (key, values)) in self.keys.iter().zip(self.values.iter_mut()).enumerate() {
            let value = vectors_mut::<S, N>(&mut values.value.0, value_first);
            let decay = simd.splat_f32s(values.decay);
            let beta = simd.splat_f32s(values.beta);
            let mut d = [simd.splat_f32s(0.0); N];
            for n in 0..N {
                let error = simd.negate_mul_add_e_f32s(decay, projected[n], value[n]);
                d[n] = simd.mul_f32s(beta, error);
            }
            let next_k = self.keys.get(token + 1).map(|key| &key.k);
            let (o, next) = Update { decay, d, key }.sweep(simd, self.tile, first, next_k);
            for n in 0..N {
                value[n] = simd.mul_f32s(scale, o[n]);
            }
            projected = next;
        }
    }
}

/// S^T k.
#[inline(always)]
fn project<S: Simd, const N: usize>(simd: S, tile: &mut Tile, first: usize, k: &Row) -> [S::f32s; N] {
    let mut sums = [simd.splat_f32s(0.0); N];
    for (row, &k) in tile.0.iter_mut().zip(&k.0) {
        let s = vectors_mut::<S, N>(row, first);
        let k = simd.splat_f32s(k);
        for n in 0..N {
            sums[n] = simd.mul_add_e_f32s(s[n], k, sums[n]);
        }
    }
    sums
}

/// What a token does to the state, and its query.
struct Update<'a, V, const N: usize> {
    decay: V,
    d: [V; N],
    key: &'a KeyInputs,
}

impl<V: Copy, const N: usize> Update<'_, V, N> {
    /// S = decay S + k d^T; returns S^T q and S^T `next_k` of the new S.
    #[inline(always)]
    fn sweep<S: Simd<f32s = V>>(
        &self,
        simd: S,
        tile: &mut Tile,
        first: usize,
        next_k: Option<&Row>,
    ) -> ([V; N], [V; N]) {
        let mut o = [simd.splat_f32s(0.0); N];
        let mut next = o;
        let next_k = next_k.unwrap_or(&self.key.k);
        for (((row, &k), &q), &next_k) in tile.0.iter_mut().zip(&self.key.k.0).zip(&self.key.q.0).zip(&next_k.0) {
            let s = vectors_mut::<S, N>(row, first);
            let (k, q, next_k) = (simd.splat_f32s(k), simd.splat_f32s(q), simd.splat_f32s(next_k));
            for n in 0..N {
                let updated = simd.mul_add_e_f32s(k, self.d[n], simd.mul_f32s(self.decay, s[n]));
                s[n] = updated;
                o[n] = simd.mul_add_e_f32s(updated, q, o[n]);
                next[n] = simd.mul_add_e_f32s(updated, next_k, next[n]);
            }
        }
        (o, next)
    }
}

#[inline(always)]
fn vectors_mut<S: Simd, const N: usize>(columns: &mut [f32], first: usize) -> &mut [S::f32s; N] {
    let (vectors, _) = S::as_mut_simd_f32s(columns);
    vectors[first..].first_chunk_mut().expect("a block of columns")
}
