document.getElementById("again").addEventListener("click", () => window.location.reload());
