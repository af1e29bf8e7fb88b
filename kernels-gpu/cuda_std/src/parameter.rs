//! Words that a launch carries in its parameters, for what is small and known to the host alone: they arrive with the kernel,
//! and a captured launch keeps its own copy.

/// `N` words by value, the first argument of a kernel. Parameters of a launch take at most 4 KB.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Words<const N: usize>([u32; N]);

impl<const N: usize> Words<N> {
    /// These words, and zeros after them.
    ///
    /// # Panics
    /// If they are more than `N`.
    #[cfg(not(target_arch = "nvptx64"))]
    #[must_use]
    pub fn new(words: &[u32]) -> Self {
        let mut all = [0; N];
        all[..words.len()].copy_from_slice(words);
        Self(all)
    }

    /// The word at `index`. A kernel asks by [`parameter_word!`](crate::parameter_word).
    ///
    /// # Panics
    /// If there are not so many.
    #[cfg(not(target_arch = "nvptx64"))]
    #[must_use]
    pub fn at(&self, index: usize) -> u32 {
        self.0[index]
    }
}

/// The word at an index of the [`Words`] that are the first argument of a kernel with one entry, by its symbol. PTX
/// `ld.param.u32` from a computed address: an array that Rust indexes would be copied to the stack first.
///
/// # Safety
/// The kernel is running as that entry, and there are so many words.
#[cfg(target_arch = "nvptx64")]
#[macro_export]
macro_rules! parameter_word {
    ($symbol:literal, $words:expr, $index:expr) => {{
        let word: u32;
        core::arch::asm!(
            concat!(
                "{{ .reg .b64 a; mov.b64 a, ",
                $symbol,
                "_param_0; add.s64 a, a, {offset}; ld.param.u32 {word}, [a]; }}"
            ),
            offset = in(reg64) 4 * $index,
            word = lateout(reg32) word,
            options(pure, nomem, nostack),
        );
        word
    }};
}

/// The word at an index of the [`Words`] that are the first argument of a kernel with one entry, by its symbol. PTX
/// `ld.param.u32` from a computed address: an array that Rust indexes would be copied to the stack first.
///
/// # Safety
/// The kernel is running as that entry, and there are so many words.
#[cfg(not(target_arch = "nvptx64"))]
#[macro_export]
macro_rules! parameter_word {
    ($symbol:literal, $words:expr, $index:expr) => {{
        // Only the GPU knows the entry by its symbol.
        const unsafe fn entry(_symbol: &str) {}
        entry($symbol);
        $words.at($index)
    }};
}
