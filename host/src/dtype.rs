//! Element types: what a tensor holds, as a tag on device memory and as typed slices on the host.
#![forbid(unsafe_code)]
use core::fmt;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// IEEE half precision: above 65504 there is only infinity.
    F16,
}

impl Dtype {
    /// Every one of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// What a tensor on the host may hold: `f32`, [`half::bf16`] or [`half::f16`].
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// Its tag.
    const DTYPE: Dtype;

    /// The number as f32, exactly.
    fn to_f32(self) -> f32;

    /// The nearest number to `value`, ties to even; what is too large becomes infinite.
    fn from_f32(value: f32) -> Self;

    /// `data` with its tag.
    fn slice(data: &[Self]) -> Slice<'_>;

    /// `data` with its tag, to be written.
    fn slice_mut(data: &mut [Self]) -> SliceMut<'_>;
}

macro_rules! element {
    ($element:ty, $tag:ident, $to:expr, $from:expr) => {
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$tag;

            fn to_f32(self) -> f32 {
                $to(self)
            }

            fn from_f32(value: f32) -> Self {
                $from(value)
            }

            fn slice(data: &[Self]) -> Slice<'_> {
                Slice::$tag(data)
            }

            fn slice_mut(data: &mut [Self]) -> SliceMut<'_> {
                SliceMut::$tag(data)
            }
        }
    };
}

element!(f32, F32, core::convert::identity, core::convert::identity);
element!(bf16, Bf16, bf16::to_f32, bf16::from_f32);
element!(f16, F16, f16::to_f32, f16::from_f32);

/// Elements to read, with their type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Slice<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
    /// Half precision.
    F16(&'a [f16]),
}

impl<'a> Slice<'a> {
    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Bf16(data) => data.len(),
            Self::F16(data) => data.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    #[must_use]
    pub const fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::Bf16(_) => Dtype::Bf16,
            Self::F16(_) => Dtype::F16,
        }
    }

    /// The elements, if they are f32.
    #[must_use]
    pub const fn f32(&self) -> Option<&'a [f32]> {
        match self {
            Self::F32(data) => Some(data),
            Self::Bf16(_) | Self::F16(_) => None,
        }
    }

    /// The element at `index`.
    ///
    /// # Panics
    /// If there is no such element.
    #[must_use]
    pub fn at(&self, index: usize) -> f32 {
        match self {
            Self::F32(data) => data[index],
            Self::Bf16(data) => data[index].to_f32(),
            Self::F16(data) => data[index].to_f32(),
        }
    }

    /// Copies as many elements from `first` on as `row` takes.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn read(&self, first: usize, row: &mut [f32]) {
        let range = first..first + row.len();
        match self {
            Self::F32(data) => row.copy_from_slice(&data[range]),
            Self::Bf16(data) => data[range].convert_to_f32_slice(row),
            Self::F16(data) => data[range].convert_to_f32_slice(row),
        }
    }

    /// The address of the first element.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::F32(data) => data.as_ptr().expose_provenance() as u64,
            Self::Bf16(data) => data.as_ptr().expose_provenance() as u64,
            Self::F16(data) => data.as_ptr().expose_provenance() as u64,
        }
    }
}

impl<'a, T: Element> From<&'a [T]> for Slice<'a> {
    fn from(data: &'a [T]) -> Self {
        T::slice(data)
    }
}

/// Elements to write, with their type.
#[derive(Debug)]
#[non_exhaustive]
pub enum SliceMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
    /// Half precision.
    F16(&'a mut [f16]),
}

impl SliceMut<'_> {
    /// The same elements, to be read.
    #[must_use]
    pub const fn as_slice(&self) -> Slice<'_> {
        match self {
            Self::F32(data) => Slice::F32(data),
            Self::Bf16(data) => Slice::Bf16(data),
            Self::F16(data) => Slice::F16(data),
        }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for SliceMut<'a> {
    fn from(data: &'a mut [T]) -> Self {
        T::slice_mut(data)
    }
}

/// The type of slot numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IndexDtype {
    /// 32 bits, negative for padding.
    I32,
    /// 32 bits, `u32::MAX` for padding.
    U32,
    /// 64 bits, negative for padding.
    I64,
}

impl IndexDtype {
    /// Bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::U32 => 4,
            Self::I64 => 8,
        }
    }
}

/// Slot numbers on the host; from `&[i32]`, `&[u32]` or `&[i64]`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Indices<'a> {
    /// Negative for padding.
    I32(&'a [i32]),
    /// `u32::MAX` for padding.
    U32(&'a [u32]),
    /// Negative for padding.
    I64(&'a [i64]),
}

impl Indices<'_> {
    /// Numbers.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::I32(data) => data.len(),
            Self::U32(data) => data.len(),
            Self::I64(data) => data.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    #[must_use]
    pub const fn dtype(&self) -> IndexDtype {
        match self {
            Self::I32(_) => IndexDtype::I32,
            Self::U32(_) => IndexDtype::U32,
            Self::I64(_) => IndexDtype::I64,
        }
    }

    /// Number `row`, -1 for padding.
    ///
    /// # Panics
    /// If there is no such number.
    #[must_use]
    pub fn at(&self, row: usize) -> i64 {
        match self {
            Self::I32(data) => i64::from(data[row]),
            Self::U32(data) if data[row] == u32::MAX => -1,
            Self::U32(data) => i64::from(data[row]),
            Self::I64(data) => data[row],
        }
    }

    /// The address of the first number.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::I32(data) => data.as_ptr().expose_provenance() as u64,
            Self::U32(data) => data.as_ptr().expose_provenance() as u64,
            Self::I64(data) => data.as_ptr().expose_provenance() as u64,
        }
    }
}

macro_rules! indices {
    ($index:ty, $tag:ident) => {
        impl<'a> From<&'a [$index]> for Indices<'a> {
            fn from(data: &'a [$index]) -> Self {
                Self::$tag(data)
            }
        }

        impl<'a, const N: usize> From<&'a [$index; N]> for Indices<'a> {
            fn from(data: &'a [$index; N]) -> Self {
                Self::$tag(data)
            }
        }
    };
}

indices!(i32, I32);
indices!(u32, U32);
indices!(i64, I64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_converted_exactly() {
        let numbers = [0.5f32, -1.25, 3.0, 0.0];
        let (bf, half) = (numbers.map(bf16::from_f32), numbers.map(f16::from_f32));
        for slice in [Slice::from(&numbers[..]), Slice::from(&bf[..]), Slice::from(&half[..])] {
            let mut row = [f32::NAN; 3];
            slice.read(1, &mut row);
            assert_eq!(row, numbers[1..]);
            assert_eq!((slice.at(1), slice.len()), (-1.25, 4));
        }
    }

    #[test]
    fn padding_is_negative_or_the_largest_u32() {
        assert_eq!(Indices::from(&[-1i32, 3]).at(0), -1);
        assert_eq!(Indices::from(&[u32::MAX, 3]).at(0), -1);
        assert_eq!(Indices::from(&[i64::MIN, 3]).at(0), i64::MIN);
        assert_eq!(Indices::from(&[u32::MAX, 3]).at(1), 3);
    }
}
