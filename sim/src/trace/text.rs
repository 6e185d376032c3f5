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

/// The latest time that is believed, in seconds since 1970: the year 2200. What is later
/// means something else, and would make a trace last for centuries.
pub(super) const LATEST_S: f64 = 7_258_118_400.0;

/// A size; empty and `-` are none at all.
pub(super) fn bytes(text: &str) -> Result<u64, &'static str> {
    const WRONG: &str = "the size is no number below 2^50";
    match text {
        "" | "-" | "?" | "null" | "NaN" | "None" => return Ok(0),
        _ => {}
    }
    let bytes = match text.parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => match text.parse::<f64>() {
            Ok(..0.0) => return Err("the size is below zero"),
            Ok(bytes) if bytes.is_finite() => bytes as u64,
            _ => return Err(WRONG),
        },
    };
    // More than any file: a number that means something else.
    if bytes < 1 << 50 {
        Ok(bytes)
    } else {
        Err(WRONG)
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
