"""What adapters keep beyond the contract of their port: crashes, damage, full disks, latency."""
