//! The PTX files, and the architectures that each is assembled for when it is verified.

use std::path::{Path, PathBuf};

use cuda_std::kernel::EntryFacts;

/// One PTX file: the driver compiles it for the card at hand, which is why the oldest version that does is the best.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Compute capability, times ten. The file holds the entries that need at most this.
    pub capability: u32,
    /// PTX version, the lowest that has the target: cards' owners complain of PTX newer than their driver.
    pub version: (u32, u32),
    /// The first driver that takes this version.
    pub driver_floor: &'static str,
}

/// Oldest first. A card gets the last file that is not newer than itself.
pub const TARGETS: [Target; 2] = [
    Target { capability: 75, version: (6, 3), driver_floor: "410 (CUDA 10.0)" },
    Target { capability: 80, version: (7, 0), driver_floor: "450 (CUDA 11.0)" },
];

/// Every architecture that the project names.
pub const ARCHITECTURES: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

impl Target {
    /// `sm_80`.
    pub fn architecture(self) -> String {
        format!("sm_{}", self.capability)
    }

    /// `gdn_sm_80.ptx`.
    pub fn file_name(self) -> String {
        format!("gdn_{}.ptx", self.architecture())
    }

    /// Where the file lies.
    pub fn path(self, root: &Path) -> PathBuf {
        root.join("host/ptx").join(self.file_name())
    }

    /// The entries that belong into the file.
    pub fn entries(self) -> Vec<EntryFacts> {
        let mut entries = kernels_gpu::table::entries();
        entries.retain(|entry| entry.minimum_capability <= self.capability);
        entries
    }
}
