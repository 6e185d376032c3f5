//! Any text as the configuration: a checked model or errors that can be shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapeze_core::config::Config;

fuzz_target!(|text: &str| {
    if let Err(errors) = Config::parse(text, "fuzz.toml") {
        assert!(errors.iter().next().is_some());
        assert!(!errors.to_string().is_empty());
    }
});
