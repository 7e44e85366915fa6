//! The commands that look at programs which have a device open, or ask something of them: `ps`,
//! `top` and `ctl`. They read what those publish in the shared directory and disturb nobody.

pub mod ctl;
pub mod observer;
pub mod ps;
pub mod top;
