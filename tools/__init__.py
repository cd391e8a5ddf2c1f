"""Programs that a developer or CI runs on this repository; never installed, never imported by the product."""
