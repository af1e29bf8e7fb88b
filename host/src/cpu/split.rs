//! Disjoint columns of a strided tensor, to be written by different threads.
#![forbid(unsafe_code)]
use crate::call::Strides;
use crate::heads::HEAD_DIM;
use ndarray::{ArrayViewMut2, ArrayViewMut3, Axis, ShapeBuilder};

/// A few columns of one head.
pub(super) struct Columns<'a> {
    /// The value head.
    pub head: usize,
    /// The first of them.
    pub first: usize,
    /// `[row, column]`; the columns of a row are contiguous.
    pub rows: ArrayViewMut2<'a, f32>,
}

/// Cuts a `[row, head, HEAD_DIM]` tensor by head, then by `width` columns.
///
/// # Panics
/// Where the rows do not fit `data` or share elements: `Call::validate` refuses both.
pub(super) fn columns(data: &mut [f32], rows: usize, heads: usize, strides: Strides, width: usize) -> Vec<Columns<'_>> {
    // The stride of a single row is never used and may be anything.
    let used = |count: usize, stride: usize| if count > 1 { stride } else { 0 };
    let shape = (heads, rows, HEAD_DIM).strides((used(heads, strides.head), used(rows, strides.token), 1));
    let tensor = ArrayViewMut3::from_shape(shape, data).expect("rows that lie apart inside the data");
    let mut all = Vec::with_capacity(heads * HEAD_DIM.div_ceil(width));
    for (head, mut rest) in tensor.into_outer_iter_mut().enumerate() {
        for first in (0..HEAD_DIM).step_by(width) {
            let (rows, after) = rest.split_at(Axis(1), width);
            all.push(Columns { head, first, rows });
            rest = after;
        }
    }
    all
}
