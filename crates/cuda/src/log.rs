//! What the driver says on stderr: what it has not, and why it refused. Nothing unless
//! `PEERDMA_LOG` asks for it, but of kernels, which a program cannot do without. That stderr takes
//! nothing more is no reason to fail.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Mutex, OnceLock};

/// Whether `PEERDMA_LOG=1` (or another value but `open` and 0) is set.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var("PEERDMA_LOG").is_ok_and(|v| !["", "0", "open"].contains(&&*v));
    *ON.get_or_init(asked)
}

fn write(text: impl Display) {
    engine_thread::say(&format!("peerdma: cuda: {text}\n"));
}

/// Says one line if asked to.
pub fn say(text: impl Display) {
    if is_on() {
        write(text);
    }
}

/// Says one line if asked to, and each text only once.
pub fn say_once(text: impl Display) {
    if is_on() {
        tell_once(text);
    }
}

/// Says one line whatever the setting, and each text only once.
pub fn tell_once(text: impl Display) {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let text = text.to_string();
    let is_new = engine_thread::lock(&SAID).get_or_insert_default().insert(text.clone());
    if is_new {
        write(text);
    }
}
