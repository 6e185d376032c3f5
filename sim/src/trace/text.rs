//! Pieces that both formats share.

use super::Method;

/// Path and query of a URL, which may be absolute and may have a fragment.
pub(super) fn path_and_query(url: &str) -> (&str, Option<&str>) {
    let url = url.split('#').next().unwrap_or("");
    let url = match url.split_once("://") {
        Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
            rest.find(['/', '?']).map_or("/", |at| &rest[at..])
        }
        _ => url,
    };
    match url.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (url, None),
    }
}

/// Whether a URL names a program rather than a file, as far as one can tell.
pub(super) fn is_dynamic(path: &str, query: Option<&str>) -> bool {
    const PROGRAMS: [&str; 7] = [".php", ".cgi", ".asp", ".aspx", ".jsp", ".pl", ".py"];
    let path = path.to_ascii_lowercase();
    query.is_some()
        || path.contains("/cgi-bin/")
        || PROGRAMS.iter().any(|ending| path.ends_with(ending))
}

/// A method's name in any case; empty or `-` is GET.
pub(super) fn method(text: &str) -> Option<Method> {
    match text.to_ascii_uppercase().as_str() {
        "GET" | "" | "-" => Some(Method::Get),
        "HEAD" => Some(Method::Head),
        name if name.len() <= 20 && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') => {
            Some(Method::Other)
        }
        _ => None,
    }
}

/// A size; empty, `-` and what is below zero are none at all.
pub(super) fn bytes(text: &str) -> Option<u64> {
    match text {
        "" | "-" | "?" | "null" | "NaN" | "None" => Some(0),
        _ => match text.parse::<u64>() {
            Ok(bytes) => Some(bytes),
            Err(_) => (text.parse::<f64>().ok())
                .filter(|bytes| bytes.is_finite())
                .map(|bytes| bytes.max(0.0) as u64),
        }
        // More than any file: a number that means something else.
        .filter(|&bytes| bytes < 1 << 50),
    }
}

/// A status; empty and `-` are 200, as nearly all are.
pub(super) fn status(text: &str) -> Option<u16> {
    match text {
        "" | "-" => Some(200),
        _ => {
            let status = text.parse::<f64>().ok()? as u16;
            (100..1000).contains(&status).then_some(status)
        }
    }
}
