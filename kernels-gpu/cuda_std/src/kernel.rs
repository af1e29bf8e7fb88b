//! How a kernel is declared: its arguments once, its PTX entries, and what a launch must know of each.

/// The cards that a kernel, or a PTX file, is for. Compute capabilities are times ten: 75, 80, ...
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Cards of this compute capability and of every later one.
    From(u32),
    /// Cards of this compute capability alone: what PTX names with an `a`, such as the warp group's products of `sm_90a`, no
    /// later card runs.
    Only(u32),
}

#[cfg(not(target_arch = "nvptx64"))]
impl Architecture {
    /// The least compute capability that it is for.
    #[must_use]
    pub const fn capability(self) -> u32 {
        let (Self::From(capability) | Self::Only(capability)) = self;
        capability
    }

    /// Whether a card of compute capability `card` runs it.
    #[must_use]
    pub const fn runs_on(self, card: u32) -> bool {
        match self {
            Self::From(capability) => capability <= card,
            Self::Only(capability) => capability == card,
        }
    }

    /// Whether a kernel that is for this can stand in a PTX file that is for `file`: wherever the file runs, it has to run.
    #[must_use]
    pub const fn fits_in(self, file: Self) -> bool {
        self.runs_on(file.capability()) && !matches!((self, file), (Self::Only(_), Self::From(_)))
    }

    /// The PTX target: `sm_80`, or `sm_90a` for one card alone.
    #[must_use]
    pub fn target(self) -> String {
        let suffix = if matches!(self, Self::Only(_)) { "a" } else { "" };
        format!("sm_{}{suffix}", self.capability())
    }
}

/// A kernel as the host sees it. `A` is the struct of its arguments.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct Kernel<A: 'static> {
    /// The kernel's name, that of its file.
    pub name: &'static str,
    /// The cards that it is for.
    pub architecture: Architecture,
    /// The blocks a multiprocessor should be able to hold, for the compiler's register budget (PTX `.minnctapersm`).
    pub blocks_per_multiprocessor: u32,
    /// One PTX entry for each compile-time variant.
    pub entries: &'static [Entry<A>],
}

/// One PTX entry.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct Entry<A: 'static> {
    /// Its symbol in the PTX.
    pub symbol: &'static str,
    /// Threads of a block (PTX `.maxntid`).
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The body, for the emulator. Compiled with fused multiply-add where the processor has it.
    pub body: unsafe fn(A),
}

/// What `xtask` needs to know of an entry, whatever its arguments.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub struct EntryFacts {
    /// The kernel's name, that of its file.
    pub kernel: &'static str,
    /// Symbol in the PTX.
    pub symbol: &'static str,
    /// The cards that it is for.
    pub architecture: Architecture,
    /// Blocks a multiprocessor should be able to hold.
    pub blocks_per_multiprocessor: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<A> Kernel<A> {
    /// The facts of every entry.
    pub fn facts(&self) -> impl Iterator<Item = EntryFacts> {
        self.entries.iter().map(|entry| EntryFacts {
            kernel: self.name,
            symbol: entry.symbol,
            architecture: self.architecture,
            blocks_per_multiprocessor: self.blocks_per_multiprocessor,
            threads: entry.threads,
            shared_bytes: entry.shared_bytes,
        })
    }
}

/// Arguments that a driver launch can take the addresses of.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Arguments: Copy + Send + Sync {
    /// The address of each argument in the order of the PTX entry's parameters. Valid as long as `self` stays in place.
    fn pointers(&self) -> Vec<*mut core::ffi::c_void>;
}

/// Declares the arguments of one or more kernels: the struct `Args`, and the macro, named after `for`, that declares a
/// kernel which takes them. In the PTX build each entry's parameters are the fields in order.
///
/// `capability 75` is the least compute capability, times ten, that the kernel needs; `capability 90 alone` declares one for
/// cards of that compute capability alone.
///
/// ```
/// # #![allow(missing_docs)]
/// mod scale {
///     use cuda_std::{Global, GlobalMut, thread};
///     pub const THREADS: usize = 128;
///     cuda_std::arguments! {
///         /// What the kernel takes.
///         pub struct Args {
///             /// Read.
///             pub x: Global<f32>,
///             /// Written.
///             pub y: GlobalMut<f32>,
///         }
///         for scale_kernel
///     }
///     scale_kernel! {
///         kernel "scale", capability 75, blocks 1;
///         entry scale_by_two = run::<2>, threads THREADS, shared 0;
///     }
///     unsafe fn run<const FACTOR: u32>(args: Args) {
///         let i = thread::thread_idx_x() as usize;
///         unsafe { args.y.put(i, args.x.at(i) * FACTOR as f32) }
///     }
/// }
/// assert_eq!(scale::KERNEL.entries[0].symbol, "scale_by_two");
/// ```
#[macro_export]
macro_rules! arguments {
    ($(#[$documentation:meta])* pub struct Args $fields:tt for $kernel:ident) => {
        $crate::__arguments! { $(#[$documentation])* $fields $kernel $ }
    };
}

/// The arguments' struct, their addresses for the driver, and the macro for kernels. Part of [`arguments!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __arguments {
    (
        $(#[$documentation:meta])*
        { $($(#[$field_documentation:meta])* pub $field:ident: $type:ty),* $(,)? }
        $kernel:ident $dollar:tt
    ) => {
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug)]
        pub struct Args { $($(#[$field_documentation])* pub $field: $type),* }

        #[cfg(not(target_arch = "nvptx64"))]
        impl $crate::kernel::Arguments for Args {
            fn pointers(&self) -> Vec<*mut core::ffi::c_void> {
                vec![$((&raw const self.$field).cast_mut().cast()),*]
            }
        }

        /// Declares a kernel that takes these arguments.
        macro_rules! $kernel {
            (
                kernel $dollar name:literal, capability $dollar capability:literal $dollar($dollar alone:ident)?,
                blocks $dollar blocks:literal;
                $dollar(entry $dollar symbol:ident = $dollar run:path,
                    threads $dollar threads:expr, shared $dollar shared:expr;)+
            ) => {
                $dollar($crate::__kernel_entry! { $dollar symbol, $dollar run, { $($field: $type),* } })+

                /// The kernel's entries and what a launch must know of each.
                #[cfg(not(target_arch = "nvptx64"))]
                pub static KERNEL: $crate::kernel::Kernel<Args> = $crate::kernel::Kernel {
                    name: $dollar name,
                    architecture: $crate::__kernel_architecture!($dollar capability $dollar($dollar alone)?),
                    blocks_per_multiprocessor: $dollar blocks,
                    entries: &[$dollar($crate::kernel::Entry {
                        symbol: stringify!($dollar symbol),
                        threads: ($dollar threads) as u32,
                        shared_bytes: ($dollar shared) as u32,
                        body: $dollar symbol,
                    }),+],
                };
            };
        }
        #[allow(unused_imports)]
        pub(crate) use $kernel;
    };
}

/// The cards that a kernel is for. Part of [`arguments!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_architecture {
    ($capability:literal) => {
        $crate::kernel::Architecture::From($capability)
    };
    ($capability:literal alone) => {
        $crate::kernel::Architecture::Only($capability)
    };
}

/// One entry: the PTX symbol in the PTX build, the emulator's body otherwise. Part of [`arguments!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __kernel_entry {
    ($symbol:ident, $run:path, { $($field:ident: $type:ty),* }) => {
        #[cfg(target_arch = "nvptx64")]
        #[allow(clippy::too_many_arguments, missing_docs)]
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $symbol($($field: $type),*) {
            // SAFETY: the launch's contract is that of `run`.
            unsafe { $run(Args { $($field),* }) }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        unsafe fn $symbol(args: Args) {
            /// The same body with the processor's fused multiply-add: the emulated one is a function call each.
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn with_fma(args: Args) {
                // SAFETY: the launch's contract is that of `run`.
                unsafe { $run(args) }
            }
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                // SAFETY: the features were just detected.
                return unsafe { with_fma(args) };
            }
            // SAFETY: the launch's contract is that of `run`.
            unsafe { $run(args) }
        }
    };
}
