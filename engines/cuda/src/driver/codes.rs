//! Result codes of the driver API, and the error of a call.

use std::fmt;

use thiserror::Error;

macro_rules! codes {
    ($($number:literal $variant:ident $name:literal,)*) => {
        /// Why a call of the driver failed, by the documented codes.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Code {
            $(#[doc = $name] $variant,)*
            /// A code that this list does not have.
            Other(u32),
        }

        impl Code {
            /// `None` is success.
            pub fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    0 => None,
                    $($number => Some(Self::$variant),)*
                    other => Some(Self::Other(other)),
                }
            }
        }

        impl fmt::Display for Code {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($name),)*
                    Self::Other(raw) => write!(f, "CUDA error {raw}"),
                }
            }
        }
    };
}

codes! {
    1 InvalidValue "CUDA_ERROR_INVALID_VALUE",
    2 OutOfMemory "CUDA_ERROR_OUT_OF_MEMORY",
    3 NotInitialized "CUDA_ERROR_NOT_INITIALIZED",
    4 Deinitialized "CUDA_ERROR_DEINITIALIZED",
    34 StubLibrary "CUDA_ERROR_STUB_LIBRARY",
    46 DeviceUnavailable "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100 NoDevice "CUDA_ERROR_NO_DEVICE",
    101 InvalidDevice "CUDA_ERROR_INVALID_DEVICE",
    200 InvalidImage "CUDA_ERROR_INVALID_IMAGE",
    201 InvalidContext "CUDA_ERROR_INVALID_CONTEXT",
    209 NoBinaryForGpu "CUDA_ERROR_NO_BINARY_FOR_GPU",
    214 EccUncorrectable "CUDA_ERROR_ECC_UNCORRECTABLE",
    218 InvalidPtx "CUDA_ERROR_INVALID_PTX",
    220 NvlinkUncorrectable "CUDA_ERROR_NVLINK_UNCORRECTABLE",
    222 UnsupportedPtxVersion "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    226 Contained "CUDA_ERROR_CONTAINED",
    304 OperatingSystem "CUDA_ERROR_OPERATING_SYSTEM",
    400 InvalidHandle "CUDA_ERROR_INVALID_HANDLE",
    401 IllegalState "CUDA_ERROR_ILLEGAL_STATE",
    500 NotFound "CUDA_ERROR_NOT_FOUND",
    600 NotReady "CUDA_ERROR_NOT_READY",
    700 IllegalAddress "CUDA_ERROR_ILLEGAL_ADDRESS",
    702 LaunchTimeout "CUDA_ERROR_LAUNCH_TIMEOUT",
    709 ContextIsDestroyed "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    710 Assert "CUDA_ERROR_ASSERT",
    712 AlreadyRegistered "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
    713 NotRegistered "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
    714 HardwareStackError "CUDA_ERROR_HARDWARE_STACK_ERROR",
    715 IllegalInstruction "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716 MisalignedAddress "CUDA_ERROR_MISALIGNED_ADDRESS",
    717 InvalidAddressSpace "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    718 InvalidPc "CUDA_ERROR_INVALID_PC",
    719 LaunchFailed "CUDA_ERROR_LAUNCH_FAILED",
    721 TensorMemoryLeak "CUDA_ERROR_TENSOR_MEMORY_LEAK",
    800 NotPermitted "CUDA_ERROR_NOT_PERMITTED",
    801 NotSupported "CUDA_ERROR_NOT_SUPPORTED",
    802 SystemNotReady "CUDA_ERROR_SYSTEM_NOT_READY",
    803 SystemDriverMismatch "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    999 Unknown "CUDA_ERROR_UNKNOWN",
}

impl Code {
    /// Whether the context is unusable from now on: every later call returns an error, and the process has to end.
    pub fn loses_context(self) -> bool {
        matches!(
            self,
            Self::Deinitialized
                | Self::DeviceUnavailable
                | Self::EccUncorrectable
                | Self::NvlinkUncorrectable
                | Self::Contained
                | Self::IllegalAddress
                | Self::LaunchTimeout
                | Self::ContextIsDestroyed
                | Self::Assert
                | Self::HardwareStackError
                | Self::IllegalInstruction
                | Self::MisalignedAddress
                | Self::InvalidAddressSpace
                | Self::InvalidPc
                | Self::LaunchFailed
                | Self::TensorMemoryLeak
        )
    }
}

/// A call of the driver that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{call}({operands}) failed with {code}")]
pub struct CallError {
    pub call: &'static str,
    pub operands: String,
    pub code: Code,
}

/// Turns a result code into an error that names the call and its operands.
pub(super) fn check(
    call: &'static str,
    raw: u32,
    operands: impl FnOnce() -> String,
) -> Result<(), CallError> {
    match Code::from_raw(raw) {
        None => Ok(()),
        Some(code) => Err(CallError { call, operands: operands(), code }),
    }
}
