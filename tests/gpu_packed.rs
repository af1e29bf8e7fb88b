//! Packed sequences on tensor cores on a GPU, in common launches: counted as skipped without one, a failure with
//! `GDN_REQUIRE_GPU=1` (case 35).
#![forbid(unsafe_code)]
use host::{Dtype, HeadMap, Kernel};
use tests::{Batch, BatchPath, bars, gpu_or_skip, heads};

/// Sequences of several segments, short ones, empty ones: each has the bits that it has alone.
#[test]
fn packed_sequences_have_the_bits_they_have_alone_on_the_device() {
    let lengths = [&[2100, 0, 33, 4130, 70, 1, 2048][..], &[300; 5], &[4100, 4100], &[0, 0]];
    let Some(_) = gpu_or_skip("batches on tensor cores", lengths.len()) else { return };
    let path = BatchPath::Cuda(Some(Kernel::ChunkedTensor));
    for (seed, lengths) in lengths.into_iter().enumerate() {
        let batch = Batch::new(heads(2, 6, HeadMap::Grouped), lengths, Dtype::F32, 60 + seed as u64);
        let outputs = batch.run(path).unwrap();
        batch
            .agrees(&outputs, &bars::GENERAL)
            .and_then(|()| batch.bits_alone(path, &outputs))
            .unwrap_or_else(|e| panic!("{lengths:?}: {e}"));
    }
}
