"Importing anything of the kit says how torch's waiting threads sleep; later, OpenMP would not read it."
from . import threads as threads
