//! A single token, on the caller's state as it lies.
//!
//! A state that few tokens use is not worth copying to tiles: rows are read and written as wide as they are.
#![forbid(unsafe_code)]
use super::segment::{KeyInputs, ValueInputs};
use super::split::Columns;
use super::sums::{Update, correction, project, vectors_mut};
use pulp::{Simd, WithSimd};

/// Takes `state` through one token and leaves its output where its value was.
pub(super) struct Single<'a, 'state> {
    pub state: &'a mut Columns<'state>,
    pub key: &'a KeyInputs,
    pub values: &'a mut ValueInputs,
    pub scale: f32,
}

impl WithSimd for Single<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Two registers a vector, and five. A block divides the narrowest piece, 32 columns, or is one.
        let columns = self.state.rows.ncols();
        match S::F32_LANES {
            16 if columns == 128 => self.blocks::<S, 8>(simd),
            16 => self.blocks::<S, 2>(simd),
            _ => self.blocks::<S, 4>(simd),
        }
    }
}

impl Single<'_, '_> {
    #[inline(always)]
    fn blocks<S: Simd, const N: usize>(&mut self, simd: S) {
        let Self { state, key, values, scale } = self;
        let (scale, decay) = (simd.splat_f32s(*scale), simd.splat_f32s(values.decay));
        for block in 0..state.rows.ncols() / (N * S::F32_LANES) {
            let first = block * N;
            let projected = project::<S, N>(simd, rows(state), first, &key.k);
            let value_first = state.first / S::F32_LANES + first;
            let v = *vectors_mut::<S, N>(&mut values.value.0, value_first);
            let d = correction::<S, N>(simd, values, &v, &projected);
            let (o, []) = Update { decay, d, key }.sweep(simd, rows(state), first, []);
            let value = vectors_mut::<S, N>(&mut values.value.0, value_first);
            for n in 0..N {
                value[n] = simd.mul_f32s(scale, o[n]);
            }
        }
    }
}

#[inline(always)]
fn rows<'a>(state: &'a mut Columns<'_>) -> impl Iterator<Item = &'a mut [f32]> {
    state.rows.outer_iter_mut().map(|row| row.into_slice().expect("contiguous columns"))
}
