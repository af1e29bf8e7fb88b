//! Disjoint parts of strided tensors, to be written by different threads: sequences, slots, columns.
#![forbid(unsafe_code)]
use crate::heads::{HEAD_DIM, Heads};
use crate::layout::{StateLayout, StateOrder, Strides};
use crate::sequences::Sequences;
use ndarray::{ArrayView3, ArrayViewMut2, ArrayViewMut3, ArrayViewMut4, Axis, ShapeBuilder};

/// A few columns of one head.
pub(super) struct Columns<'a> {
    /// The value head.
    pub head: usize,
    /// The first of them.
    pub first: usize,
    /// `[row, column]`; the columns of a row are contiguous.
    pub rows: ArrayViewMut2<'a, f32>,
}

/// Cuts a `[head, row, column]` tensor by head, then by `width` columns.
pub(super) fn columns(tensor: ArrayViewMut3<'_, f32>, width: usize) -> Vec<Columns<'_>> {
    let mut all = Vec::with_capacity(tensor.dim().0 * HEAD_DIM.div_ceil(width));
    for (head, mut rest) in tensor.into_outer_iter_mut().enumerate() {
        for first in (0..HEAD_DIM).step_by(width) {
            let (rows, after) = rest.split_at(Axis(1), width);
            all.push(Columns { head, first, rows });
            rest = after;
        }
    }
    all
}

/// Cuts a `[batch, token, head, HEAD_DIM]` tensor into the `[head, token, column]` rows of each sequence.
///
/// # Panics
/// Where the rows do not fit `data` or share elements: `Call::validate` refuses both.
pub(super) fn sequences<'a, T>(
    data: &'a mut [T],
    sequences: &Sequences<'_>,
    heads: &Heads,
    strides: Strides,
    batch_stride: usize,
) -> Vec<ArrayViewMut3<'a, T>> {
    let ([batch, tokens], heads) = (sequences.axes(), heads.num_v_heads);
    let (shape, strides) = (
        (batch, heads, tokens, HEAD_DIM),
        (used(batch, batch_stride), used(heads, strides.head), used(tokens, strides.token), 1),
    );
    // Without elements strides lead nowhere.
    let shape = shape.strides(if batch * tokens == 0 { (0, 0, 0, 0) } else { strides });
    let tensor = ArrayViewMut4::from_shape(shape, data).expect("rows that lie apart inside the data");
    let outer = tensor.into_outer_iter_mut();
    match sequences {
        Sequences::Uniform { .. } => outer.collect(),
        Sequences::Varlen { .. } => {
            let mut all = Vec::with_capacity(sequences.count());
            for mut rest in outer {
                for index in 0..sequences.count() {
                    let (rows, after) = rest.split_at(Axis(1), sequences.tokens(index));
                    all.push(rows);
                    rest = after;
                }
            }
            all
        }
    }
}

/// Cuts a pool of states into its slots, each `[head, key row, value column]` in whatever order it lies.
///
/// # Panics
/// As [`sequences`].
pub(super) fn slots<'a>(
    data: &'a mut [f32],
    count: usize,
    heads: &Heads,
    layout: StateLayout,
) -> impl Iterator<Item = ArrayViewMut3<'a, f32>> + use<'a> {
    let shape = (count, heads.num_v_heads, HEAD_DIM, HEAD_DIM);
    let [head, row, column] = if count == 0 { [0; 3] } else { state_strides(heads, layout) };
    let shape = shape.strides((used(count, layout.slot), head, row, column));
    ArrayViewMut4::from_shape(shape, data).expect("slots that lie apart inside the data").into_outer_iter_mut()
}

/// One slot of a pool, to be read.
///
/// # Panics
/// If it is not inside `data`.
pub(super) fn slot<'a>(data: &'a [f32], index: usize, heads: &Heads, layout: StateLayout) -> ArrayView3<'a, f32> {
    let [head, row, column] = state_strides(heads, layout);
    let shape = (heads.num_v_heads, HEAD_DIM, HEAD_DIM).strides((head, row, column));
    ArrayView3::from_shape(shape, &data[index * layout.slot..]).expect("a slot inside the data")
}

/// From a head, a key row and a value column to the next.
fn state_strides(heads: &Heads, layout: StateLayout) -> [usize; 3] {
    let (row, column) = match layout.order {
        StateOrder::KeyMajor => (layout.row, 1),
        StateOrder::ValueMajor => (1, layout.row),
    };
    [used(heads.num_v_heads, layout.head), row, column]
}

/// The stride of a single element is never used and may be anything.
fn used(count: usize, stride: usize) -> usize {
    if count > 1 { stride } else { 0 }
}
