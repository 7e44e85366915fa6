//! What the rooms above do for those below: before the process first joins the registry, and around
//! a fork. They are set when the library is loaded.

use descriptors::Kept;
use std::sync::OnceLock;

/// The rooms above.
pub struct Hooks {
    /// Makes the process ready for an engine: interposed calls find us, forks and the program's end
    /// are noticed.
    pub prepare: fn(),
    /// What a process needs that has mapped a buffer, though it may never join the registry: forks
    /// are noticed.
    pub watch_forks: fn(),
    /// Pins of GPU buffers for a child that is about to be forked.
    pub pins_for_child: fn() -> Vec<Kept>,
    /// In the process that `daemon(3)` made: what its parent had is its own.
    pub adopt: fn(),
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Sets them, once.
pub fn set(hooks: Hooks) {
    let _ = HOOKS.set(hooks);
}

/// See [`Hooks::prepare`].
pub fn prepare() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.prepare)();
    }
}

/// See [`Hooks::watch_forks`].
pub fn watch_forks() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.watch_forks)();
    }
}

/// See [`Hooks::pins_for_child`].
pub fn pins_for_child() -> Vec<Kept> {
    HOOKS.get().map_or_else(Vec::new, |hooks| (hooks.pins_for_child)())
}

/// See [`Hooks::adopt`].
pub fn adopt() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.adopt)();
    }
}
