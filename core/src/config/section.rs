//! Reading one table of the file: which keys it may have, which it must have,
//! and what to say about each that is wrong. A wrong value costs an error and
//! reads as absent, so that the rest of the file is still checked.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{ConfigError, line_of};
use super::nearest::suggestion;

/// The text, and the mistakes found in it so far.
pub(super) struct Source<'t> {
    text: &'t str,
    file: &'t str,
    errors: RefCell<Vec<ConfigError>>,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str, file: &'t str) -> Self {
        Source {
            text,
            file,
            errors: RefCell::default(),
        }
    }

    /// Records a mistake.
    pub(super) fn error(&self, span: Range<usize>, message: impl Into<String>) {
        let error = ConfigError::new(self.text, self.file, span, message.into());
        self.errors.borrow_mut().push(error);
    }

    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        line_of(self.text, span.start)
    }

    pub(super) fn into_errors(self) -> Vec<ConfigError> {
        self.errors.into_inner()
    }
}

/// A table that is being read. [`Section::finish`] reports what nobody asked for.
pub(super) struct Section<'s> {
    pub(super) source: &'s Source<'s>,
    /// How the file spells it, as `[[backend]]`.
    title: &'static str,
    table: &'s DeTable<'s>,
    pub(super) span: Range<usize>,
    asked: Vec<&'static str>,
}

/// A value that may be short or long.
pub(super) enum WordOrTable<'s, T> {
    Word(T),
    Table(Section<'s>),
}

impl<'s> Section<'s> {
    pub(super) fn new(
        source: &'s Source<'s>,
        title: &'static str,
        table: &'s DeTable<'s>,
        span: Range<usize>,
    ) -> Self {
        Section {
            source,
            title,
            table,
            span,
            asked: Vec::new(),
        }
    }

    /// The value of a key that may be absent, with its place.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'s DeValue<'s>) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        let value = self.take(key)?;
        match read(value.get_ref()) {
            Ok(read) => Some(Spanned::new(value.span(), read)),
            Err(message) => {
                self.source
                    .error(value.span(), format!("`{key}`: {message}"));
                None
            }
        }
    }

    /// The value of a key that must be there; `example` says how it looks.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        example: &str,
        read: impl FnOnce(&'s DeValue<'s>) -> Result<T, String>,
    ) -> Option<Spanned<T>> {
        if self.table.get(key).is_none() {
            let title = self.title;
            self.error(format!(
                "{title} lacks `{key}`: add a line such as `{key} = {example}`"
            ));
        }
        self.optional(key, read)
    }

    /// The table under `key`, as `[key]` or inline.
    pub(super) fn table(&mut self, key: &'static str, title: &'static str) -> Option<Section<'s>> {
        let value = self.take(key)?;
        match value.get_ref().as_table() {
            Some(table) => Some(Section::new(self.source, title, table, value.span())),
            None => {
                self.source.error(
                    value.span(),
                    format!("`{key}` must be a table: write {title}"),
                );
                None
            }
        }
    }

    /// What stands under `key`: a word that `read` understands, or a table.
    pub(super) fn word_or_table<T>(
        &mut self,
        key: &'static str,
        title: &'static str,
        read: impl FnOnce(&'s DeValue<'s>) -> Result<T, String>,
    ) -> Option<WordOrTable<'s, T>> {
        match self.table.get(key).map(|value| value.get_ref()) {
            Some(DeValue::Table(_)) => self.table(key, title).map(WordOrTable::Table),
            _ => {
                let word = self.optional(key, read)?;
                Some(WordOrTable::Word(word.into_inner()))
            }
        }
    }

    /// The tables under `key`, each begun by `[[key]]`; none if there is no such key.
    pub(super) fn tables(&mut self, key: &'static str, title: &'static str) -> Vec<Section<'s>> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            let message = format!("there can be several of `{key}`: write {title}");
            self.source.error(value.span(), message);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_table() {
                Some(table) => {
                    sections.push(Section::new(self.source, title, table, item.span()));
                }
                None => {
                    let message = format!("each `{key}` must be a table: write {title}");
                    self.source.error(item.span(), message);
                }
            }
        }
        sections
    }

    /// Whether the key is there, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Records a mistake in the table as a whole.
    pub(super) fn error(&self, message: impl Into<String>) {
        self.source.error(self.span.clone(), message);
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn finish(self) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let mut message = format!("{} has no key `{name}`", self.title);
            match suggestion(name, self.asked.iter().copied()) {
                nothing if nothing.is_empty() => {
                    message.push_str(&format!("; it has {}", self.asked.join(", ")));
                }
                suggestion => message.push_str(&suggestion),
            }
            self.source.error(key.span(), message);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<&'s Spanned<DeValue<'s>>> {
        self.asked.push(key);
        self.table.get(key)
    }
}
