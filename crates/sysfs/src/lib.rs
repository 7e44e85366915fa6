//! sysfs
