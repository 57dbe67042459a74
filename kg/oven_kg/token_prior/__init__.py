"""Token priors: which tokens a graph holds to be important."""
