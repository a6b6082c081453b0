//! An RMSNorm through an exported TVM-FFI library, from Rust without Python and without a crate, beside float64.
//!
//!     normgen export --tvm-ffi --cubin libraries  # its first lines say how rmsnorm_fwd_f32.so is built
//!     rustc -O --edition 2021 tvm_ffi.rs -L "$(tvm-ffi-config --libdir)" -l tvm_ffi
//!     LD_LIBRARY_PATH="$(tvm-ffi-config --libdir)" ./tvm_ffi ./rmsnorm_fwd_f32.so 8192 4096
//!
//! A library's function is a symbol of C, `__tvm_ffi_<name>`, which takes an array of values and answers 0 or an error;
//! below are the structs of tvm/ffi/c_api.h and of DLPack that a call needs. The memory is the driver's, opened here.

use std::ffi::{c_char, c_int, c_void, CString};
use std::{env, mem, process, ptr, slice};

/// A tensor of DLPack.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// A value of TVM-FFI, TVMFFIAny: which type it has, and 8 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    type_index: i32,
    padding: u32,
    bits: u64,
}

impl Value {
    const NONE: Value = Value { type_index: 0, padding: 0, bits: 0 };

    fn number(value: f64) -> Value {
        Value { type_index: 3, padding: 0, bits: value.to_bits() }
    }

    fn tensor(value: &Tensor) -> Value {
        Value { type_index: 7, padding: 0, bits: value as *const Tensor as u64 }
    }
}

/// An error of TVM-FFI: the head of each of its objects, then what it says.
#[repr(C)]
struct Raised {
    head: [u64; 3],
    kind: Bytes,
    message: Bytes,
}

#[repr(C)]
struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    unsafe fn text(&self) -> String {
        String::from_utf8_lossy(slice::from_raw_parts(self.data, self.size)).into_owned()
    }
}

type Function = unsafe extern "C" fn(*mut c_void, *const Value, i32, *mut Value) -> c_int;

extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn TVMFFIErrorMoveFromRaised(error: *mut *mut Raised);
    fn TVMFFIObjectDecRef(object: *mut Raised) -> c_int;
}

const RTLD_NOW: c_int = 2;
const CPU: i32 = 1;
const CUDA: i32 = 2;

fn fail(text: String) -> ! {
    eprintln!("{text}");
    process::exit(1)
}

unsafe fn opened(name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a path has no zero byte");
    dlopen(name.as_ptr(), RTLD_NOW)
}

/// The symbol of a library, null where there is none.
unsafe fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name has no zero byte");
    if library.is_null() { ptr::null_mut() } else { dlsym(library, name.as_ptr()) }
}

/// The driver's functions that the program calls.
struct Driver {
    init: unsafe extern "C" fn(u32) -> c_int,
    retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    set: unsafe extern "C" fn(*mut c_void) -> c_int,
    allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    wait: unsafe extern "C" fn() -> c_int,
}

impl Driver {
    /// That of this machine with the primary context of device 0 current; None without a driver or a device.
    unsafe fn here() -> Option<Driver> {
        let library = opened("libcuda.so.1");
        let names = [
            "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemcpyHtoD_v2",
            "cuMemcpyDtoH_v2", "cuCtxSynchronize",
        ];
        let found = names.map(|name| symbol(library, name));
        if found.iter().any(|address| address.is_null()) {
            return None;
        }
        let driver = Driver {
            init: mem::transmute(found[0]),
            retain: mem::transmute(found[1]),
            set: mem::transmute(found[2]),
            allocate: mem::transmute(found[3]),
            to_device: mem::transmute(found[4]),
            to_host: mem::transmute(found[5]),
            wait: mem::transmute(found[6]),
        };
        let mut context = ptr::null_mut();
        let made = (driver.init)(0) == 0 && (driver.retain)(&mut context, 0) == 0 && (driver.set)(context) == 0;
        made.then_some(driver)
    }

    unsafe fn copied(&self, values: &[f32]) -> *mut c_void {
        let mut memory = 0;
        must((self.allocate)(&mut memory, mem::size_of_val(values)), "cuMemAlloc");
        must((self.to_device)(memory, values.as_ptr().cast(), mem::size_of_val(values)), "cuMemcpyHtoD");
        memory as *mut c_void
    }
}

fn must(status: c_int, what: &str) {
    if status != 0 {
        fail(format!("{what}: CUDA error {status}"))
    }
}

/// A contiguous float32 tensor.
fn tensor(data: *mut c_void, device_type: i32, shape: &[i64]) -> Tensor {
    let (ndim, shape) = (shape.len() as i32, shape.as_ptr());
    Tensor { data, device_type, device_id: 0, ndim, code: 2, bits: 32, lanes: 1, shape, strides: ptr::null(), byte_offset: 0 }
}

/// Calls a library's function; its error as `Kind: message`.
unsafe fn call(function: Function, arguments: &[Value]) -> Result<(), String> {
    let mut result = Value::NONE;
    if function(ptr::null_mut(), arguments.as_ptr(), arguments.len() as i32, &mut result) == 0 {
        return Ok(());
    }
    let mut raised = ptr::null_mut();
    TVMFFIErrorMoveFromRaised(&mut raised);
    let text = format!("{}: {}", (*raised).kind.text(), (*raised).message.text());
    TVMFFIObjectDecRef(raised);
    Err(text)
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if arguments.len() < 2 {
        eprintln!("usage: {} LIBRARY [ROWS COLS]", arguments[0]);
        process::exit(2)
    }
    let size = |place: usize, otherwise: i64| {
        arguments.get(place).map_or(otherwise, |word| word.parse().unwrap_or_else(|_| fail(format!("no size: {word}"))))
    };
    let (sizes, eps) = ([size(2, 8192), size(3, 4096)], 1e-6);
    let (rows, cols) = (sizes[0] as usize, sizes[1] as usize);
    let x: Vec<f32> =
        (0..rows * cols).map(|i| (i.wrapping_mul(2654435761) % 1000) as f32 / 500.0 - 0.7).collect();
    let weight: Vec<f32> = (0..cols).map(|c| 1.0 + (c % 7) as f32 / 8.0).collect();
    let mut y = vec![-1.0f32; rows * cols];

    unsafe {
        let address = symbol(opened(&arguments[1]), "__tvm_ffi_rmsnorm_fwd_f32");
        if address.is_null() {
            fail(format!("no library with rmsnorm_fwd_f32: {}", arguments[1]))
        }
        let rms_norm: Function = mem::transmute(address);
        let driver = Driver::here();
        let (device, places) = match &driver {
            Some(driver) => (CUDA, [driver.copied(&y), driver.copied(&x), driver.copied(&weight)]),
            None => (CPU, [y.as_mut_ptr().cast(), x.as_ptr() as *mut c_void, weight.as_ptr() as *mut c_void]),
        };
        let output = tensor(places[0], device, &sizes);
        let (input, scale) = (tensor(places[1], device, &sizes), tensor(places[2], device, &sizes[1..]));
        // y, rstd, x, weight, eps: the second is optional
        let values = [
            Value::tensor(&output), Value::NONE, Value::tensor(&input), Value::tensor(&scale), Value::number(eps),
        ];
        if let Err(text) = call(rms_norm, &values) {
            println!("{text}");
            process::exit(i32::from(driver.is_some()))
        }
        let driver = driver.expect("the library takes memory of a GPU alone");
        must((driver.wait)(), "cuCtxSynchronize");
        must((driver.to_host)(y.as_mut_ptr().cast(), places[0] as u64, mem::size_of_val(&y[..])), "cuMemcpyDtoH");
    }

    let mut worst = 0f64;
    for (row, found) in x.chunks(cols).zip(y.chunks(cols)) {
        let squares: f64 = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let rstd = 1.0 / (squares / cols as f64 + eps).sqrt();
        for c in 0..cols {
            let wanted = f64::from(row[c]) * rstd * f64::from(weight[c]);
            worst = worst.max((f64::from(found[c]) - wanted).abs() / wanted.abs().max(1.0));
        }
    }
    println!("{rows} x {cols}: largest error {worst:.1e}");
    process::exit(i32::from(!(worst < 1e-5)))
}
