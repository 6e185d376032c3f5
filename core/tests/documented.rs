//! What the documentation shows as a whole configuration is one.

use std::path::{Path, PathBuf};

use trapeze_core::config::Config;

#[test]
fn every_example_is_a_configuration() {
    let files = with_extension(&repository().join("examples"), "toml");
    assert!(!files.is_empty());
    for file in files {
        check(&std::fs::read_to_string(&file).unwrap(), &file, 0);
    }
}

#[test]
fn every_complete_configuration_in_the_documentation_is_one() {
    let mut pages = with_extension(&repository().join("docs"), "md");
    pages.push(repository().join("README.md"));
    let mut found = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for (line, block) in complete_blocks(&text) {
            check(&block, &page, line);
            found += 1;
        }
    }
    assert!(
        found >= 2,
        "only {found} blocks begin with ```toml complete"
    );
}

fn check(text: &str, file: &Path, line: usize) {
    if let Err(errors) = Config::parse(text, &file.display().to_string()) {
        panic!("{} (lines count from {line}):\n{errors}", file.display());
    }
}

/// The content of each block that begins with "```toml complete", and its line.
fn complete_blocks(text: &str) -> Vec<(usize, String)> {
    let mut lines = text.lines().enumerate();
    let mut blocks = Vec::new();
    while let Some((number, line)) = lines.next() {
        if line == "```toml complete" {
            let content = lines.by_ref().map(|(_, line)| line);
            let content: Vec<&str> = content.take_while(|line| *line != "```").collect();
            blocks.push((number + 2, content.join("\n")));
        }
    }
    blocks
}

fn with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(with_extension(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
