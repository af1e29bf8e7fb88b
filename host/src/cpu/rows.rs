//! The output of a sequence, in whatever type it has.
#![forbid(unsafe_code)]
use super::split;
use crate::call::ViewMut;
use crate::dtype::{Element, SliceMut};
use crate::heads::{HEAD_DIM, Heads};
use crate::sequences::Sequences;
use core::ops::Range;
use half::{bf16, f16};
use ndarray::{ArrayViewMut3, Axis, ShapeBuilder, Slice};

/// `[head, token, column]` of one sequence.
pub(super) enum Rows<'a> {
    F32(ArrayViewMut3<'a, f32>),
    Bf16(ArrayViewMut3<'a, bf16>),
    F16(ArrayViewMut3<'a, f16>),
}

impl<'a> Rows<'a> {
    /// Those of every sequence.
    pub fn of_sequences(out: ViewMut<'a>, sequences: &Sequences<'_>, heads: &Heads) -> Vec<Self> {
        fn cut<'a, T>(
            data: &'a mut [T],
            (sequences, heads): (&Sequences<'_>, &Heads),
            (strides, batch_stride): (crate::layout::Strides, usize),
            rows: fn(ArrayViewMut3<'a, T>) -> Rows<'a>,
        ) -> Vec<Rows<'a>> {
            split::sequences(data, sequences, heads, strides, batch_stride).into_iter().map(rows).collect()
        }
        let (shape, strides) = ((sequences, heads), (out.strides, out.batch_stride));
        match out.data {
            SliceMut::F32(data) => cut(data, shape, strides, Self::F32),
            SliceMut::Bf16(data) => cut(data, shape, strides, Self::Bf16),
            SliceMut::F16(data) => cut(data, shape, strides, Self::F16),
        }
    }

    /// What padding has.
    pub fn zero(&mut self) {
        match self {
            Self::F32(rows) => rows.fill(0.0),
            Self::Bf16(rows) => rows.fill(bf16::ZERO),
            Self::F16(rows) => rows.fill(f16::ZERO),
        }
    }

    /// Has `compute` fill the rows of some tokens with f32: in place, or in `room`, from where they are rounded once.
    pub fn write(&mut self, tokens: Range<usize>, room: &mut Vec<f32>, compute: impl FnOnce(ArrayViewMut3<'_, f32>)) {
        match self {
            Self::F32(rows) => compute(rows.slice_axis_mut(Axis(1), Slice::from(tokens))),
            Self::Bf16(rows) => rounded(rows.slice_axis_mut(Axis(1), Slice::from(tokens)), room, compute),
            Self::F16(rows) => rounded(rows.slice_axis_mut(Axis(1), Slice::from(tokens)), room, compute),
        }
    }
}

fn rounded<T: Element>(
    mut rows: ArrayViewMut3<'_, T>,
    room: &mut Vec<f32>,
    compute: impl FnOnce(ArrayViewMut3<'_, f32>),
) {
    let (heads, tokens, _) = rows.dim();
    room.resize(heads * tokens * HEAD_DIM, 0.0);
    let shape = (heads, tokens, HEAD_DIM).strides((HEAD_DIM, heads * HEAD_DIM, 1));
    let mut floats = ArrayViewMut3::from_shape(shape, &mut room[..]).expect("as many as the shape says");
    compute(floats.view_mut());
    rows.zip_mut_with(&floats, |to, &value| *to = T::from_f32(value));
}
