"""The provider by ZFS."""
