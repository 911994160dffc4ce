//! The C ABI of `include/mf_tokenizer.h`. No panic crosses it, handles are integers that are never
//! reused, and an error leaves one sentence with the calling thread.

mod model;
mod tables;

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use model::Tokenizer;

const ABI_VERSION: u32 = 1;
const OK: i32 = 0;
const ERROR: i32 = 1;
const NOT_FOUND: i32 = 2;
/// Text from this size on leaves enough free memory behind to be worth giving back.
const TRIM_TEXT_BYTES: usize = 256 * 1024;

struct Handles {
    next: u32,
    open: Option<HashMap<u32, Arc<Tokenizer>>>,
}

static HANDLES: Mutex<Handles> = Mutex::new(Handles {
    next: 1,
    open: None,
});

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    static LAST_RESULT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(handle: u32) -> Result<Arc<Tokenizer>, String> {
    let state = handles();
    let found = state.open.as_ref().and_then(|open| open.get(&handle));
    found
        .cloned()
        .ok_or_else(|| format!("tokenizer handle {handle} is not open"))
}

/// Runs `body` and turns errors and panics into a status with a sentence.
fn guarded(body: impl FnOnce() -> Result<i32, String>) -> i32 {
    static SILENCE: Once = Once::new();
    // The sentence goes to the caller; a library does not print.
    SILENCE.call_once(|| set_hook(Box::new(|_| {})));
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err("the tokenizer library failed inside (a panic)".to_owned()));
    outcome.unwrap_or_else(|sentence| {
        LAST_ERROR.with(|last| *last.borrow_mut() = sentence);
        ERROR
    })
}

/// # Safety
/// `bytes` must point to `length` readable bytes, or `length` must be 0.
unsafe fn text<'a>(bytes: *const u8, length: u32) -> Result<&'a str, String> {
    if length == 0 {
        return Ok("");
    }
    if bytes.is_null() {
        return Err("a null pointer was passed for a text".to_owned());
    }
    let slice = std::slice::from_raw_parts(bytes, length as usize);
    std::str::from_utf8(slice).map_err(|error| format!("the text is not UTF-8: {error}"))
}

/// Keeps a result for `mf_tokenizer_result` and reports its size in bytes.
///
/// # Safety
/// `size` must point to a writable u32.
unsafe fn keep(result: Vec<u8>, size: *mut u32) -> Result<(), String> {
    let length = u32::try_from(result.len()).map_err(|_| "a result is over 4 GiB".to_owned())?;
    store(size, length)?;
    LAST_RESULT.with(|last| *last.borrow_mut() = result);
    Ok(())
}

/// # Safety
/// `target` must be null or point to a writable u32.
unsafe fn store(target: *mut u32, value: u32) -> Result<(), String> {
    if target.is_null() {
        return Err("a null pointer was passed for a result".to_owned());
    }
    *target = value;
    Ok(())
}

/// # Safety
/// `target` must be null or point to `capacity` writable bytes.
unsafe fn copy_out(source: &[u8], target: *mut u8, capacity: u32) -> u32 {
    let length = source.len().min(capacity as usize);
    if !target.is_null() {
        std::ptr::copy_nonoverlapping(source.as_ptr(), target, length);
    }
    source.len() as u32
}

/// Gives freed memory back to the system: loading leaves two thirds of its peak behind.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // Safe: takes no pointer and locks the allocator itself.
        unsafe { malloc_trim(0) };
    }
}

#[no_mangle]
pub extern "C" fn mf_tokenizer_abi_version() -> u32 {
    ABI_VERSION
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_last_error(target: *mut u8, capacity: u32) -> u32 {
    LAST_ERROR.with(|last| copy_out(last.borrow().as_bytes(), target, capacity))
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_open(path: *const u8, length: u32, handle: *mut u32) -> i32 {
    guarded(|| {
        let opened = Tokenizer::open(text(path, length)?);
        trim();
        let tokenizer = Arc::new(opened?);
        let mut state = handles();
        let id = state.next;
        store(handle, id)?;
        state.next += 1;
        state
            .open
            .get_or_insert_with(HashMap::new)
            .insert(id, tokenizer);
        Ok(OK)
    })
}

#[no_mangle]
pub extern "C" fn mf_tokenizer_close(handle: u32) -> i32 {
    guarded(|| {
        let removed = handles()
            .open
            .as_mut()
            .and_then(|open| open.remove(&handle));
        drop(removed.ok_or_else(|| format!("tokenizer handle {handle} is not open"))?);
        trim();
        Ok(OK)
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_describe(handle: u32, size: *mut u32) -> i32 {
    guarded(|| {
        keep(find(handle)?.description.clone().into_bytes(), size)?;
        Ok(OK)
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_model_size(handle: u32, size: *mut u32) -> i32 {
    guarded(|| {
        store(size, find(handle)?.model_size)?;
        Ok(OK)
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_encode(
    handle: u32,
    bytes: *const u8,
    length: u32,
    size: *mut u32,
) -> i32 {
    guarded(|| {
        let mut ids = Vec::new();
        find(handle)?.encode(text(bytes, length)?, &mut ids)?;
        keep(ids.iter().flat_map(|id| id.to_ne_bytes()).collect(), size)?;
        if length as usize >= TRIM_TEXT_BYTES {
            drop(ids);
            trim();
        }
        Ok(OK)
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_piece(handle: u32, id: u32, size: *mut u32) -> i32 {
    guarded(|| match find(handle)?.piece(id) {
        Some(piece) => {
            keep(piece.into_bytes(), size)?;
            Ok(OK)
        }
        None => Ok(NOT_FOUND),
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_id(
    handle: u32,
    piece: *const u8,
    length: u32,
    id: *mut u32,
) -> i32 {
    guarded(|| match find(handle)?.id(text(piece, length)?) {
        Some(found) => {
            store(id, found)?;
            Ok(OK)
        }
        None => Ok(NOT_FOUND),
    })
}

/// # Safety
/// See `include/mf_tokenizer.h`.
#[no_mangle]
pub unsafe extern "C" fn mf_tokenizer_result(target: *mut u8, capacity: u32) -> u32 {
    LAST_RESULT.with(|last| {
        let result = std::mem::take(&mut *last.borrow_mut());
        copy_out(&result, target, capacity)
    })
}
