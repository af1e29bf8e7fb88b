//! What a tensor's shape and strides describe, checked in 128 bits: where it ends, and whether its rows overlap.
#![forbid(unsafe_code)]
use crate::error::{Error, Result};

/// The rows that a tensor's shape and strides describe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub argument: &'static str,
    /// Counts and strides in elements of the axes in front of the row, outermost first: batch or slot, token or state row,
    /// head.
    pub axes: [(usize, usize); 3],
    /// Elements of a row.
    pub dim: usize,
    pub element_bytes: usize,
}

impl Rows {
    /// Elements from the first to the last, both included; 0 for no rows.
    ///
    /// # Errors
    /// [`Error::Shape`] where that or its bytes do not fit a signed 64-bit number.
    pub fn elements(&self) -> Result<usize> {
        if self.axes.iter().any(|&(count, _)| count == 0) {
            return Ok(0);
        }
        let last: u128 = self.axes.iter().map(|&(count, stride)| (count as u128 - 1) * stride as u128).sum();
        let elements = last + self.dim as u128;
        let limit = isize::MAX as u128 / self.element_bytes as u128;
        if elements > limit {
            return Err(Error::shape(
                self.argument,
                format!("at most {limit} elements from the first to the last"),
                elements,
            ));
        }
        Ok(elements as usize)
    }

    /// That `length` elements hold the rows.
    pub fn require_length(&self, length: usize) -> Result<()> {
        let elements = self.elements()?;
        if length < elements {
            let [(outer, outer_stride), (rows, row_stride), (heads, head_stride)] = self.axes;
            let strides = format!("strides {outer_stride}, {row_stride}, {head_stride}");
            return Err(Error::shape(
                self.argument,
                format!("at least {elements} elements for {outer} x {rows} x {heads} rows of {} ({strides})", self.dim),
                length,
            ));
        }
        Ok(())
    }

    /// That no two rows share an element, for a tensor that is written: every axis steps over what is inside it.
    pub fn require_disjoint(&self) -> Result<()> {
        if self.axes.iter().any(|&(count, _)| count == 0) {
            return Ok(());
        }
        let mut axes = self.axes;
        axes.sort_by_key(|&(_, stride)| stride);
        let mut extent = self.dim as u128;
        for (count, stride) in axes.into_iter().filter(|&(count, _)| count > 1) {
            if (stride as u128) < extent {
                return Err(Error::shape(
                    self.argument,
                    format!("rows that do not overlap: a stride of at least {extent}"),
                    stride,
                ));
            }
            extent += (count as u128 - 1) * stride as u128;
        }
        Ok(())
    }
}
