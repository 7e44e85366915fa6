//! What a program that runs on the software HCA finds around itself: the library, the sysfs tree,
//! the variables that lead to both, and the folder in which they lie while it runs. What is made
//! here for one run is gone after it; only the user's cache stays.

mod drm;
pub mod embedded;
pub mod session;
pub mod settings;
pub mod tree;
