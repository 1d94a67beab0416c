"""Protocol guards, a file each: ``before(setting)`` and ``after(answered)``, either or both."""
