//! In debug builds: that every pointer of a call is memory which this device reaches. The driver is asked for each, some 60 ns.
use super::error::CudaError;
use super::raw::{self, check};
use super::scratch::is_capturing;
use super::stream::Stream;
use crate::request::{CheckpointTable, GateTensors, Request};
use core::ffi::c_int;

/// Asks the driver about every pointer of `request`, which is valid, unless the stream is being captured. The context is current.
///
/// # Errors
/// [`CudaError::NotDeviceMemory`] or [`CudaError::OtherDevice`], naming the first argument that is not.
pub(super) fn require_here(request: &Request<'_>, ordinal: c_int, stream: Stream) -> Result<(), CudaError> {
    // Where that cannot be asked, another stream is being captured.
    if is_capturing(stream).unwrap_or(true) {
        return Ok(());
    }
    let mut pointers = Vec::new();
    if request.sequences.total() > 0 {
        let [g, beta] = request.gates.tensors();
        for tensor in [&request.q, &request.k, &request.v, g, beta, &request.out] {
            pointers.push((tensor.argument, tensor.place.address));
        }
        if let GateTensors::Raw { decay, dt_bias, .. } = &request.gates {
            pointers.extend([("decay", decay.address), ("dt_bias", dt_bias.address)]);
        }
    }
    if request.sequences.count() > 0 {
        let pools = [request.initial, request.last, request.every.map(|(_, pool)| pool)];
        pointers.extend(pools.into_iter().flatten().map(|pool| (pool.argument, pool.place.address)));
        let per_token = match request.checkpoints {
            Some(CheckpointTable::PerToken(table)) => Some(table),
            _ => None,
        };
        for (argument, table) in [
            ("state_indices", request.indices),
            ("output_state_indices", request.output_indices),
            ("checkpoints", per_token),
        ] {
            pointers.extend(table.map(|table| (argument, table.place.address)));
        }
    }
    // Pools without slots and tables without entries may be nowhere.
    pointers.into_iter().filter(|&(_, pointer)| pointer != 0).try_for_each(|(argument, pointer)| {
        let mut device: c_int = 0;
        // SAFETY: types: this attribute is an int, which is written where the pointer is known.
        let code = unsafe {
            raw::cuPointerGetAttribute((&raw mut device).cast(), raw::POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
        };
        match check("cuPointerGetAttribute", code) {
            Ok(()) if device == ordinal => Ok(()),
            Ok(()) => Err(CudaError::OtherDevice { argument, pointer, device, ordinal }),
            Err(source) => Err(CudaError::NotDeviceMemory { argument, pointer, source }),
        }
    })
}
