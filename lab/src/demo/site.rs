//! What the demo's cluster serves, and its configuration: files of its own, gone
//! with it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{cluster, documents};

/// Where demos keep their files while they run.
const SITES: &str = "/var/tmp/trapeze";

/// The directory that the servers serve, and the configuration beside it.
pub struct Site {
    directory: PathBuf,
    root: PathBuf,
    config: PathBuf,
}

impl Site {
    /// Makes the files of the demo `name`.
    ///
    /// # Errors
    /// The disk is full, or not ours to write to.
    pub fn make(name: &str) -> Result<Self> {
        let documents = documents::ensure()?;
        let directory = Path::new(SITES).join(format!("site-{name}-{}", std::process::id()));
        let site = Site {
            root: directory.join("root"),
            config: directory.join("trapeze.toml"),
            directory,
        };
        let config = cluster::nodes(name, 1, 3, None)? + RULES;
        site.write(&documents, &config)
            .with_context(|| format!("cannot write to {}", site.directory.display()))?;
        Ok(site)
    }

    /// What the servers serve.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The cluster's configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The content rules of the configuration, as the demo shows them.
    pub fn rules() -> &'static str {
        "path_prefix = \"/img\"                            pool = \"images\"     b2\n\
         host = \"*.static.example\"                       pool = \"static\"     b3\n\
         header = { name = \"X-Canary\", value = \"yes\" }   pool = \"static\"     b3"
    }

    fn write(&self, documents: &Path, config: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(self.root.join("img"))?;
        for (name, _) in documents::DOCUMENTS {
            std::os::unix::fs::symlink(documents.join(name), self.root.join(name))?;
        }
        std::fs::write(self.root.join("img/logo"), "a picture, one may imagine\n")?;
        for page in super::PAGES {
            let text = format!("this is {page}\n");
            std::fs::write(self.root.join(page.trim_start_matches('/')), text)?;
        }
        std::fs::write(&self.config, config)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What follows the nodes b1, b2 and b3.
const RULES: &str = r#"
[[pool]]
name = "web"
policy = "hrw"
backends = ["b1", "b2", "b3"]

[[pool]]
name = "images"
backends = ["b2"]

[[pool]]
name = "static"
backends = ["b3"]

[[service]]
name = "site"
address = "10.77.0.100:80"
pool = "web"

[[service.rule]]
path_prefix = "/img"
pool = "images"

[[service.rule]]
host = "*.static.example"
pool = "static"

[[service.rule]]
header = { name = "X-Canary", value = "yes" }
pool = "static"

[[service]]
name = "site-tls"
address = "10.77.0.100:443"
pool = "web"

[[service.rule]]
sni = "img.www.lab"
pool = "images"
"#;
