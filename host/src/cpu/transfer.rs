//! The caller's state to tiles and back, in vectors as wide as the sums': with a single token this is half the time.
#![forbid(unsafe_code)]
use super::tile::Tile;
use ndarray::{ArrayView2, ArrayViewMut2};
use pulp::{Simd, WithSimd};

/// Fills `tiles`, which lie side by side, from `[key row, column]`.
pub(super) struct Load<'a> {
    pub rows: ArrayView2<'a, f32>,
    pub tiles: &'a mut [Tile],
}

impl WithSimd for Load<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (index, row) in self.rows.outer_iter().enumerate() {
            let columns = row.to_slice().expect("contiguous columns");
            for (tile, columns) in self.tiles.iter_mut().zip(columns.as_chunks().0) {
                tile.0[index] = *columns;
            }
        }
    }
}

/// Writes `tiles` to `[key row, column]`.
pub(super) struct Store<'a> {
    pub rows: ArrayViewMut2<'a, f32>,
    pub tiles: &'a [Tile],
}

impl WithSimd for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        for (index, row) in self.rows.outer_iter_mut().enumerate() {
            let columns = row.into_slice().expect("contiguous columns");
            for (tile, columns) in self.tiles.iter().zip(columns.as_chunks_mut().0) {
                *columns = tile.0[index];
            }
        }
    }
}
