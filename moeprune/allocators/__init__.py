"""Allocators: which experts stay; one file each, the file name is the allocator."""
